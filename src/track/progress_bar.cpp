#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <limits>
#include <mutex>
#include <sys/ioctl.h>
#include <unistd.h>
#include <utility>

#include <hasten/base/environment.h>
#include <hasten/base/log.h>
#include <hasten/track/progress_bar.h>

#include "track/progress_line.h"
#include "track/text.h"

namespace hasten::track {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr std::string_view kClearLine = "\r\033[K";
constexpr int kUsualWidth = 80;
constexpr double kMemoryOfRate = 5;  // seconds after which an observation counts for 1/e

bool standard_error_can_redraw() {
  return ::isatty(STDERR_FILENO) == 1 && environment::get("TERM").value_or("dumb") != "dumb";
}

int width_of_terminal() {
  winsize size{};
  const bool known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : kUsualWidth;
}

bool locale_is_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    auto locale = environment::get(name);
    if (!locale) continue;  // the first that is set decides
    std::transform(locale->begin(), locale->end(), locale->begin(),
                   [](unsigned char c) { return std::tolower(c); });
    return locale->find("utf-8") != std::string::npos || locale->find("utf8") != std::string::npos;
  }
  return false;
}

/// A rate over the last seconds: each observation's weight decays with its age, and dividing by the equally
/// weighted time makes it exact from the first one on.
class Rate {
 public:
  void observe(double steps, double seconds) {
    const double decay = std::exp(-seconds / kMemoryOfRate);
    steps_ = steps_ * decay + steps;
    seconds_ = seconds_ * decay + seconds;
  }
  [[nodiscard]] std::optional<double> per_second() const {
    if (seconds_ <= 0) return std::nullopt;
    return steps_ / seconds_;
  }

 private:
  double steps_ = 0;
  double seconds_ = 0;
};

}  // namespace

class ProgressBar::State {
 public:
  explicit State(ProgressOptions options)
      : options_(std::move(options)),
        description_(on_one_line(options_.description)),
        terminal_(options_.terminal.has_value() ? *options_.terminal : standard_error_can_redraw()),
        unicode_(options_.unicode.has_value() ? *options_.unicode : locale_is_utf8()),
        count_(options_.start),
        begin_(now()),
        last_count_(options_.start),
        last_time_(begin_) {
    plan_next(begin_);
    if (!terminal_) return;
    show(line(std::nullopt));
    // In two steps, so that the old sink is known before the new one can be called.
    previous_sink_ = log::set_sink({});
    log::set_sink([this](log::Level level, std::string_view text) { log_above(level, text); });
  }

  ~State() {
    try {
      finish();
    } catch (...) {  // a sink of the user's; a destructor has no one to tell
    }
  }

  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void update(std::int64_t steps) {
    count_ += steps;
    const Clock::time_point time = now();
    if (time < next_time_ && count_ < next_count_) return;
    observe(time);
    plan_next(time);
    const bool left_to_finish = !terminal_ && options_.total == count_;
    if (!left_to_finish) show(line(std::nullopt));
  }

  [[nodiscard]] bool due() const { return count_ + 1 >= next_count_ || now() >= next_time_; }

  void set(std::string_view name, double value) {
    for (auto& [known, last] : values_) {
      if (known != name) continue;
      last = value;
      return;
    }
    values_.emplace_back(on_one_line(name), value);
  }

  void write_line(std::string_view text) {
    const std::lock_guard lock(mutex_);
    write_above(text);
  }

  void finish() {
    if (finished_) return;
    if (terminal_) log::set_sink(previous_sink_);
    show(line(Seconds(now() - begin_).count()));
    const std::lock_guard lock(mutex_);
    finished_ = true;
    if (terminal_) write("\n");
  }

  [[nodiscard]] std::int64_t count() const noexcept { return count_; }

 private:
  [[nodiscard]] Clock::time_point now() const { return options_.clock ? options_.clock() : Clock::now(); }

  void write(std::string_view text) {
    if (options_.write) {
      options_.write(text);
    } else {
      std::fwrite(text.data(), 1, text.size(), stderr);
    }
  }

  void observe(Clock::time_point time) {
    rate_.observe(static_cast<double>(count_ - last_count_), Seconds(time - last_time_).count());
    last_count_ = count_;
    last_time_ = time;
  }

  /// Decides when `update` shows something again: after a while; away from a terminal at the next tenth of
  /// the total too; and at the whole, so that the last values are fetched for it.
  void plan_next(Clock::time_point time) {
    next_time_ = time + (terminal_ ? options_.redraw_every : options_.print_every);
    next_count_ = std::numeric_limits<std::int64_t>::max();
    if (!options_.total || count_ >= *options_.total) return;
    next_count_ = *options_.total;
    if (terminal_) return;
    for (int tenth = 9; tenth > 0; --tenth) {
      const auto boundary =
          static_cast<std::int64_t>(std::ceil(static_cast<double>(*options_.total) * tenth / 10));
      if (boundary > count_) next_count_ = std::min(next_count_, boundary);
    }
  }

  /// The line for now; `elapsed` when the loop is over, and with it the mean rate.
  std::string line(std::optional<double> elapsed) {
    Progress progress{.description = description_,
                      .count = count_,
                      .total = options_.total,
                      .steps_per_second = rate_.per_second(),
                      .unit = options_.unit,
                      .units_per_step = options_.units_per_step,
                      .elapsed = elapsed};
    if (elapsed && *elapsed > 0)
      progress.steps_per_second = static_cast<double>(count_ - options_.start) / *elapsed;
    if (!terminal_) return plain_line(progress, values_);
    const int width = options_.width.has_value() ? *options_.width : width_of_terminal();
    // The last column stays free: some terminals start a new line once it is filled.
    return terminal_line(progress, values_, static_cast<std::size_t>(std::max(width - 1, 1)), unicode_);
  }

  void show(std::string text) {
    const std::lock_guard lock(mutex_);
    if (!terminal_) {
      write(text + '\n');
      return;
    }
    shown_ = std::move(text);
    write(std::string(kClearLine) + shown_);
  }

  /// The log's sink: the line appears where the bar is, and the bar below it.
  void log_above(log::Level level, std::string_view text) {
    const std::lock_guard lock(mutex_);
    if (!previous_sink_) {
      write_above(log::line_of(level, text));
      return;
    }
    write(kClearLine);
    previous_sink_(level, text);
    write(shown_);
  }

  /// With the mutex held.
  void write_above(std::string_view text) {
    const bool redraw = terminal_ && !finished_;
    std::string out(redraw ? kClearLine : "");
    out.append(text).append("\n").append(redraw ? shown_ : "");
    write(out);
  }

  ProgressOptions options_;
  std::string description_;
  bool terminal_;
  bool unicode_;
  std::int64_t count_;
  NamedValues values_;
  Rate rate_;
  Clock::time_point begin_;
  std::int64_t last_count_;  // when the rate was last observed
  Clock::time_point last_time_;
  Clock::time_point next_time_;
  std::int64_t next_count_ = 0;
  std::mutex mutex_;   // guards the screen, and what follows
  std::string shown_;  // the line that stands there
  bool finished_ = false;
  log::Sink previous_sink_;
};

ProgressBar::ProgressBar(ProgressOptions options) : state_(std::make_unique<State>(std::move(options))) {}
ProgressBar::~ProgressBar() = default;
ProgressBar::ProgressBar(ProgressBar&&) noexcept = default;
ProgressBar& ProgressBar::operator=(ProgressBar&&) noexcept = default;

void ProgressBar::update(std::int64_t steps) {
  state_->update(steps);
}
bool ProgressBar::due() const {
  return state_->due();
}
void ProgressBar::set(std::string_view name, double value) {
  state_->set(name, value);
}
void ProgressBar::write_line(std::string_view text) {
  state_->write_line(text);
}
void ProgressBar::finish() {
  state_->finish();
}
std::int64_t ProgressBar::count() const noexcept {
  return state_->count();
}

}  // namespace hasten::track

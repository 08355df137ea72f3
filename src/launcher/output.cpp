#include "launcher/output.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <poll.h>
#include <utility>

#include <hasten/base/environment.h>

namespace hasten::launcher {
namespace {

/// Takes the first line, with its end if it has one, off the front of `text`.
std::string_view take_line(std::string_view& text) {
  const auto end = text.find('\n');
  const auto line = text.substr(0, end == std::string_view::npos ? text.size() : end + 1);
  text.remove_prefix(line.size());
  return line;
}

std::string mark(int rank, bool colour) {
  const auto plain = "[" + std::to_string(rank) + "]";
  if (!colour) return plain + " ";
  constexpr std::array kColours{"36", "33", "35", "32", "34"};
  return "\x1b[" + std::string(kColours[static_cast<std::size_t>(rank) % kColours.size()]) + "m" + plain +
         "\x1b[0m ";
}

}  // namespace

MarkedOutput::MarkedOutput(int descriptor, std::function<void()> on_broken)
    : descriptor_(descriptor),
      terminal_(::isatty(descriptor) != 0),
      colour_(terminal_ && !environment::get("NO_COLOR")),
      on_broken_(std::move(on_broken)) {}

void MarkedOutput::write(int rank, std::string_view text) {
  std::string out;
  while (!text.empty()) append_line(rank, take_line(text), out);
  write_all(out);
}

void MarkedOutput::append_line(int rank, std::string_view line, std::string& out) {
  if (unfinished_rank_ != rank) {
    if (unfinished_rank_ >= 0) out += '\n';
    // On a terminal rank 0 draws by itself: a line of another rank takes the place of its progress bar, which
    // is drawn again below.
    if (unfinished_rank_ < 0 && terminal_) out += "\r\x1b[K";
    out += mark(rank, colour_);
  }
  out += line;
  unfinished_rank_ = line.ends_with('\n') ? -1 : rank;
}

void MarkedOutput::finish() {
  if (unfinished_rank_ < 0) return;
  unfinished_rank_ = -1;
  write_all("\n");
}

void MarkedOutput::write_all(std::string_view text) {
  while (!text.empty() && !broken_) {
    const auto size = ::write(descriptor_, text.data(), text.size());
    if (size >= 0) {
      text.remove_prefix(static_cast<std::size_t>(size));
    } else if (errno == EAGAIN) {
      // Whoever shares the descriptor made it non-blocking.
      pollfd writable{.fd = descriptor_, .events = POLLOUT, .revents = 0};
      ::poll(&writable, 1, -1);
    } else if (errno != EINTR) {
      broken_ = true;
      on_broken_();
    }
  }
}

LineForwarder::LineForwarder(Descriptor source, int rank, MarkedOutput& output)
    : Channel(std::move(source)), rank_(rank), output_(output) {}

void LineForwarder::receive(std::string_view bytes) {
  held_ += bytes;
  constexpr std::size_t kMostHeld = 1 << 16;
  const auto end = held_.rfind('\n');
  const auto complete = end != std::string::npos ? end + 1 : held_.size() > kMostHeld ? held_.size() : 0;
  if (complete == 0) return;
  const auto text = std::string_view(held_).substr(0, complete);
  remember(text);
  output_.write(rank_, text);
  held_.erase(0, complete);
}

void LineForwarder::flush() {
  if (held_.empty()) return;
  remember(held_);
  output_.write(rank_, held_);
  held_.clear();
}

void LineForwarder::remember(std::string_view text) {
  constexpr std::size_t kMostLines = 20;
  constexpr std::size_t kLongestLine = 2000;
  while (!text.empty()) {
    auto line = take_line(text);
    const bool ended = line.ends_with('\n');
    if (ended) line.remove_suffix(1);
    if (!last_line_open_) last_lines_.emplace_back();
    auto& last = last_lines_.back();
    last += line.substr(0, kLongestLine - std::min(kLongestLine, last.size()));
    last_line_open_ = !ended;
    if (last_lines_.size() > kMostLines) last_lines_.pop_front();
  }
}

}  // namespace hasten::launcher

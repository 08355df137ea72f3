#include "launcher/supervise.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <poll.h>
#include <sys/wait.h>
#include <utility>

#include <hasten/base/error.h>
#include <hasten/base/log.h>

namespace hasten::launcher {
namespace {

using std::chrono::milliseconds;

/// How long the start of a line waits for its end before it is shown.
constexpr milliseconds kPartialLine{100};
/// How often it is looked whether process groups are empty: no event tells.
constexpr milliseconds kGroupPoll{10};
/// How long the failure behind a failure is waited for.
constexpr milliseconds kBlame{2000};

}  // namespace

Channel::Channel(Descriptor source) : source_(std::move(source)) {
  set_non_blocking(source_);
}

void Channel::pump() {
  // A bound, so that a rank that never stops writing does not keep the others waiting.
  constexpr int kMostReads = 16;
  std::array<char, 65536> buffer;
  for (int i = 0; i < kMostReads && open(); ++i) {
    const auto size = ::read(descriptor(), buffer.data(), buffer.size());
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && errno == EAGAIN) return;
    if (size <= 0) {
      source_.reset();
      flush();
      return;
    }
    last_received_ = Clock::now();
    receive({buffer.data(), static_cast<std::size_t>(size)});
  }
}

bool Ending::obeys(int signal) const noexcept {
  return (WIFSIGNALED(status) && WTERMSIG(status) == signal) ||
         (WIFEXITED(status) && WEXITSTATUS(status) == 128 + signal);
}

int Ending::exit_code() const noexcept {
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  return WTERMSIG(status) == SIGABRT ? 1 : 128 + WTERMSIG(status);
}

std::string Ending::text() const {
  if (WIFEXITED(status)) return concat("ended with exit code ", WEXITSTATUS(status));
  const char* name = ::sigdescr_np(WTERMSIG(status));
  return concat("was ended by signal ", WTERMSIG(status), name != nullptr ? concat(" (", name, ")") : "");
}

Supervisor::Supervisor(Options options, SignalWatch& signals)
    : options_(std::move(options)), signals_(signals) {}

Supervisor::~Supervisor() {
  if (!ranks_running()) return;
  send(SIGKILL);
  for (const auto& rank : ranks_) {
    while (rank.running && ::waitpid(rank.pid, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
}

void Supervisor::add_rank(pid_t pid) {
  ranks_.push_back({.pid = pid});
}

void Supervisor::add_channel(std::unique_ptr<Channel> channel) {
  channels_.push_back(std::move(channel));
}

Outcome Supervisor::run() {
  // Once killed, a group can hold nothing but remains that nobody reaps; they are not waited for.
  while (ranks_running() || (groups_alive() && !killed_)) {
    if (!ranks_running() && !ending_) end_others();
    wait_for_events();
    pump_channels();
    handle_signals();
    reap();
    enforce_deadlines();
  }
  pump_channels();
  for (const auto& channel : channels_) channel->flush();
  Outcome outcome{.failed = failed_, .signal = signal_};
  for (const auto& rank : ranks_) outcome.endings.push_back(rank.ending);
  return outcome;
}

bool Supervisor::ranks_running() const {
  return std::ranges::any_of(ranks_, &Rank::running);
}

bool Supervisor::groups_alive() const {
  return std::ranges::any_of(ranks_, [](const Rank& rank) {
    // A process that has ended counts until it is reaped, which is ours to do where orphans come to this
    // process.
    while (::waitpid(-rank.pid, nullptr, WNOHANG) > 0) {
    }
    return ::kill(-rank.pid, 0) == 0;
  });
}

int Supervisor::wait_milliseconds(Clock::time_point now) const {
  std::optional<Clock::time_point> next;
  const auto at = [&next](Clock::time_point time) { next = next ? std::min(*next, time) : time; };
  if (!ranks_running()) at(now + kGroupPoll);
  if (kill_deadline_) at(*kill_deadline_);
  if (blame_deadline_ && !ending_) at(*blame_deadline_);
  for (const auto& channel : channels_) {
    if (channel->holds_back()) at(channel->last_received() + kPartialLine);
  }
  if (!next) return -1;
  return static_cast<int>(std::max<std::int64_t>(0, std::chrono::ceil<milliseconds>(*next - now).count()));
}

void Supervisor::wait_for_events() {
  std::vector<pollfd> waiting{{.fd = signals_.descriptor(), .events = POLLIN, .revents = 0}};
  for (const auto& channel : channels_) {
    if (channel->open()) waiting.push_back({.fd = channel->descriptor(), .events = POLLIN, .revents = 0});
  }
  if (::poll(waiting.data(), waiting.size(), wait_milliseconds(Clock::now())) < 0 && errno != EINTR) {
    fail_system(errno, "launch", "cannot wait for the ranks");
  }
}

void Supervisor::pump_channels() {
  for (const auto& channel : channels_) {
    channel->pump();
    if (channel->holds_back() && Clock::now() >= channel->last_received() + kPartialLine) channel->flush();
  }
}

void Supervisor::handle_signals() {
  for (const int signal : signals_.take()) {
    if (signal == SIGTSTP) stop_with_ranks();
    if (signal == SIGINT || signal == SIGTERM || signal == SIGHUP) interrupt(signal);
  }
}

void Supervisor::interrupt(int signal) {
  if (signal_ != 0) {
    if (signal == SIGINT) send(SIGKILL);
    return;
  }
  signal_ = signal;
  if (signal == SIGINT)
    log::info("SIGINT was passed on; send it once more (Ctrl-C) to kill all ranks at once");
  passed_on_ = signal == SIGINT || signal == SIGHUP ? signal : SIGTERM;
  send(passed_on_);
  if (signal != SIGINT) kill_deadline_ = Clock::now() + options_.grace_after_signal;
}

void Supervisor::reap() {
  std::vector<int> ended;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    auto& rank = ranks_[i];
    if (!rank.running || ::waitpid(rank.pid, &rank.ending.status, WNOHANG) != rank.pid) continue;
    rank.running = false;
    ended.push_back(static_cast<int>(i));
  }
  if (ended.empty()) return;
  pump_channels();  // what a rank said last belongs to the judgement
  judge(ended);
}

void Supervisor::judge(const std::vector<int>& ended) {
  const auto is_consequence = [this](int rank) {
    return options_.is_consequence && options_.is_consequence(rank);
  };
  for (const int rank : ended) {
    const auto& ending = ranks_[static_cast<std::size_t>(rank)].ending;
    if (ending.success() || ending_) continue;
    if (signal_ != 0 && ending.obeys(passed_on_)) {
      // The others were told to end as well: from now on they get a time for it after SIGINT too.
      if (!kill_deadline_ && !killed_) kill_deadline_ = Clock::now() + options_.grace_after_signal;
      continue;
    }
    // Of several that ended since the last look, one that was killed is the likelier cause: a rank that loses
    // another one ends with an error of its own.
    const bool better =
        failed_ && (is_consequence(*failed_) ? !is_consequence(rank)
                                             : WIFSIGNALED(ending.status) && !is_consequence(rank));
    if (!failed_ || better) failed_ = rank;
  }
  if (!failed_ || ending_) return;
  if (!is_consequence(*failed_)) {
    end_others();
  } else if (!blame_deadline_) {
    blame_deadline_ = Clock::now() + kBlame;
  }
}

void Supervisor::enforce_deadlines() {
  const auto now = Clock::now();
  if (blame_deadline_ && !ending_ && now >= *blame_deadline_) end_others();
  if (kill_deadline_ && now >= *kill_deadline_) send(SIGKILL);
}

void Supervisor::end_others() {
  ending_ = true;
  if (killed_) return;
  send(SIGTERM);
  const auto deadline = Clock::now() + options_.grace_after_failure;
  kill_deadline_ = kill_deadline_ ? std::min(*kill_deadline_, deadline) : deadline;
}

void Supervisor::send(int signal) {
  if (signal == SIGKILL) {
    killed_ = true;
    kill_deadline_.reset();
  }
  // A group with no process left refuses, which is fine. A stopped one acts on a signal only when it goes on.
  for (const auto& rank : ranks_) {
    ::kill(-rank.pid, signal);
    if (signal != SIGSTOP) ::kill(-rank.pid, SIGCONT);
  }
}

void Supervisor::stop_with_ranks() {
  send(SIGSTOP);
  ::raise(SIGSTOP);
  send(SIGCONT);
}

}  // namespace hasten::launcher

#include "launcher/signals.h"

#include <atomic>
#include <cerrno>

#include <hasten/base/error.h>

namespace hasten::launcher {
namespace {

/// Where the handler writes; -1 while no SignalWatch lives. A handler can reach nothing but a global.
std::atomic<int> write_end{-1};

void write_signal(int signal) {
  const int saved = errno;
  const auto byte = static_cast<unsigned char>(signal);
  // A full pipe holds thousands of signals that are still to be read: one more changes nothing.
  [[maybe_unused]] const auto written = ::write(write_end.load(), &byte, 1);
  errno = saved;
}

}  // namespace

SignalWatch::SignalWatch() : pipe_(open_pipe()) {
  set_non_blocking(pipe_.read);
  set_non_blocking(pipe_.write);
  int none = -1;
  require(write_end.compare_exchange_strong(none, pipe_.write.get()), ErrorCode::kFailedPrecondition,
          "launch", "this process is launching already, in another thread. Launch one run after the other.");
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    ::sigaction(kSignals[i], nullptr, &before_[i]);
    if (before_[i].sa_handler == SIG_IGN && kSignals[i] != SIGCHLD) continue;
    struct sigaction action{};
    action.sa_handler = kSignals[i] == SIGPIPE ? SIG_IGN : write_signal;
    action.sa_flags = SA_RESTART;
    ::sigaction(kSignals[i], &action, nullptr);
  }
}

SignalWatch::~SignalWatch() {
  release();
}

void SignalWatch::release() noexcept {
  if (pipe_.read.get() < 0) return;
  for (std::size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &before_[i], nullptr);
  write_end = -1;
  pipe_ = {};
}

std::vector<int> SignalWatch::take() {
  std::vector<int> signals;
  unsigned char byte = 0;
  while (::read(pipe_.read.get(), &byte, 1) == 1) signals.push_back(byte);
  return signals;
}

}  // namespace hasten::launcher

#include "train/interrupt.h"

#include <array>
#include <atomic>
#include <mutex>

namespace hasten::detail {
namespace {

constexpr std::array kSignals{SIGINT, SIGTERM};

// A handler may only touch lock-free atomics.
std::atomic<int> noted_signal{0};
static_assert(std::atomic<int>::is_always_lock_free);

std::mutex guards_mutex;
int guards = 0;
std::array<struct sigaction, kSignals.size()> previous{};

void note(int signal) {
  noted_signal.store(signal);
}

}  // namespace

InterruptGuard::InterruptGuard() {
  const std::lock_guard lock(guards_mutex);
  if (guards++ > 0) return;
  noted_signal = 0;
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    struct sigaction action{};
    action.sa_handler = note;
    // One time only: whoever presses Ctrl-C twice wants out now. Reads and waits go on after the first.
    action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_RESTART;
    sigaction(kSignals[i], &action, &previous[i]);
    // A signal that was ignored stays so, as under nohup.
    if (previous[i].sa_handler == SIG_IGN) sigaction(kSignals[i], &previous[i], nullptr);
  }
}

InterruptGuard::~InterruptGuard() {
  const std::lock_guard lock(guards_mutex);
  if (--guards > 0) return;
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &previous[i], nullptr);
}

int InterruptGuard::pending() noexcept {
  return noted_signal.load();
}

}  // namespace hasten::detail

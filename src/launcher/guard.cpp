#include "launcher/guard.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <utility>

#include <hasten/base/error.h>

namespace hasten::launcher {
namespace {

constexpr pid_t kDismissed = 0;

/// Closes everything but `keep`, so that no file, pipe or socket of the launcher stays open because of the
/// guard.
void close_all_but(int keep) {
  const auto close_range = [](unsigned first, unsigned last) { ::syscall(SYS_close_range, first, last, 0); };
  if (keep > 0) close_range(0, static_cast<unsigned>(keep) - 1);
  close_range(static_cast<unsigned>(keep) + 1, ~0U);
}

/// Runs in the forked child of a process that may have threads: only calls that are safe there, and no
/// memory.
[[noreturn]] void watch(int groups) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_NAME, "hasten-guard");
  close_all_but(groups);
  constexpr std::size_t kMost = 4096;
  std::array<pid_t, kMost> seen{};
  std::size_t count = 0;
  for (;;) {
    pid_t group = kDismissed;
    const auto size = ::read(groups, &group, sizeof(group));
    if (size < 0 && errno == EINTR) continue;
    if (size != sizeof(group)) break;
    if (group == kDismissed) ::_exit(0);
    if (count < kMost) seen[count++] = group;
  }
  for (std::size_t i = 0; i < count; ++i) ::kill(-seen[i], SIGKILL);
  ::_exit(0);
}

}  // namespace

Guard::Guard() {
  auto [read, write] = open_pipe();
  // The guard outlives whatever ends the launcher: every signal that can be held off is.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  pid_ = ::fork();
  if (pid_ == 0) {
    ::close(write.get());
    watch(read.get());
  }
  const int error = errno;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid_ < 0) fail_system(error, "launch", "cannot fork");
  groups_ = std::move(write);
}

Guard::~Guard() {
  if (groups_.get() < 0) return;
  add(kDismissed);
  groups_.reset();
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Guard::add(pid_t group) {
  [[maybe_unused]] const auto written = ::write(groups_.get(), &group, sizeof(group));
}

void Guard::release() noexcept {
  groups_.reset();
}

}  // namespace hasten::launcher

#include "launcher/spawn.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <iostream>
#include <sys/prctl.h>

#include <hasten/base/error.h>

namespace hasten::launcher {
namespace {

[[noreturn]] void run_child(pid_t parent, SignalWatch& signals, Guard& guard, const sigset_t& mask,
                            const std::function<int()>& body) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The parent may have died before the line above.
  if (::getppid() != parent) ::_exit(EXIT_FAILURE);
  guard.release();
  signals.release();
  ::pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  ::_exit(body());
}

}  // namespace

pid_t fork_child(SignalWatch& signals, Guard& guard, const std::function<int()>& body) {
  // What is still in a buffer would otherwise be written by both.
  std::cout.flush();
  std::fflush(stdout);
  std::fflush(stderr);
  const pid_t parent = ::getpid();
  // A signal that reached the child before it has its own dispositions would be written into the parent's
  // pipe.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t pid = ::fork();
  if (pid == 0) run_child(parent, signals, guard, before, body);
  const int error = errno;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid < 0) fail_system(error, "launch", "cannot fork");
  // Both sides set the group, so that neither sees it unset.
  ::setpgid(pid, pid);
  guard.add(pid);
  return pid;
}

void set_environment(const std::vector<config::Variable>& variables) {
  for (const auto& [name, value] : variables) {
    if (value) {
      ::setenv(name.c_str(), value->c_str(), 1);
    } else {
      ::unsetenv(name.c_str());
    }
  }
}

void set_standard_input(int rank) {
  if (rank == 0 && ::isatty(STDIN_FILENO) == 0) return;
  const Descriptor nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (nothing.get() > STDIN_FILENO) ::dup2(nothing.get(), STDIN_FILENO);
}

}  // namespace hasten::launcher

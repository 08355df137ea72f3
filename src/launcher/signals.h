#pragma once

#include <array>
#include <csignal>
#include <vector>

#include "launcher/descriptor.h"

namespace hasten::launcher {

/// While it lives, SIGINT, SIGTERM, SIGHUP, SIGTSTP and SIGCHLD are bytes in a pipe and do not end the
/// process, and SIGPIPE is an error of the write. One that was ignored before (as by nohup) stays ignored,
/// SIGCHLD excepted. Only one can live at a time in a process, since dispositions belong to the process; a
/// second throws `kFailedPrecondition`.
class SignalWatch {
 public:
  SignalWatch();
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  /// Readable when a signal has come.
  [[nodiscard]] int descriptor() const noexcept { return pipe_.read.get(); }

  /// The signals that came since the last call, in order.
  [[nodiscard]] std::vector<int> take();

  /// For a forked child: puts the dispositions back and closes the pipe.
  void release() noexcept;

 private:
  static constexpr std::array kSignals{SIGINT, SIGTERM, SIGHUP, SIGTSTP, SIGCHLD, SIGPIPE};
  Pipe pipe_{};
  std::array<struct sigaction, kSignals.size()> before_{};
};

}  // namespace hasten::launcher

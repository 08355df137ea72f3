#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include <hasten/base/error.h>
#include <hasten/config/options.h>

namespace hasten::launcher {

/// How to launch a program.
struct LaunchOptions {
  std::vector<std::string> command{};  ///< the program, looked up in PATH as a shell does, and its arguments
  int num_processes = 1;               ///< ranks, all on this machine
  std::optional<int>
      main_process_port{};            ///< where the ranks meet on 127.0.0.1; unset or 0 takes a free port
  bool oversubscribe = false;         ///< allow more than four processes a core
  config::LaunchSettings settings{};  ///< handed on to the program
  std::chrono::milliseconds grace_after_failure{
      5000};  ///< from SIGTERM to SIGKILL for the others of a failed rank
  std::chrono::milliseconds grace_after_signal{
      30000};  ///< the same after a signal to the launcher: time for a save
};

/// Runs `options.command` in `num_processes` ranks, waits for them, and returns the launcher's exit code: 0
/// when all ranks return 0; otherwise that of the rank that failed first (128 + n when signal n ended it, but
/// 1 for SIGABRT, which is how C++ ends on an uncaught exception); 128 + n when the ranks ended because the
/// launcher was sent signal n.
///
/// The ranks get RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, HASTEN_STORE_FD
/// (rank 0), the variables of `settings`, and, unless it is set, OMP_NUM_THREADS = cores / processes.
///
/// Several ranks' lines are marked `[rank] `. Where standard output or standard error is a terminal, rank 0
/// keeps it for itself, unmarked, so that its progress bar draws there. A single rank has the launcher's
/// output as it is. Rank 0 reads the launcher's standard input unless that is a terminal; the others read
/// nothing.
///
/// When a rank fails, the others are ended, and what failed is logged with its last lines. No process is left
/// over, even when the launcher is killed. Throws before any rank runs: `kInvalidArgument` for bad options,
/// `kNotFound` when there is no such program, `kFailedPrecondition` when it cannot be executed,
/// `kUnavailable` when the port is in use.
[[nodiscard]] int launch_program(const LaunchOptions& options);

/// The exit code of a launcher that could not start: 2 for bad options, 126 for a program that cannot be
/// executed, 127 for one that does not exist (as shells have it), otherwise 1.
[[nodiscard]] int exit_code_of(const Error& error) noexcept;

}  // namespace hasten::launcher

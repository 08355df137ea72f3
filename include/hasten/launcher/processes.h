#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <hasten/config/process.h>

namespace hasten::launcher {

/// How to run a function in several processes.
struct ProcessOptions {
  int num_processes = 1;  ///< ranks, all on this machine
  std::optional<int>
      main_process_port{};     ///< where the ranks meet on 127.0.0.1; unset or 0 takes a free port
  bool oversubscribe = false;  ///< allow more than four processes a core
  std::chrono::milliseconds grace_after_failure{
      5000};  ///< from SIGTERM to SIGKILL for the others of a failed rank
  std::chrono::milliseconds grace_after_signal{
      30000};  ///< the same after a signal to this process: time for a save
};

/// Forks `num_processes` children, runs `body` in each with what `process_from_environment` gives there too,
/// and returns the bytes that they returned, by rank. Blocks until all have ended.
///
/// In a child `body` runs on a fresh thread: an OpenMP runtime that has worked in this process would hang on
/// the forked one. Its number of threads is not changed by the environment any more; `threads_per_process`
/// says how many suit. The child ends without running destructors of static objects or functions registered
/// for the end of the process. Children write to this process's output as it is, live; they do not read from
/// a terminal.
///
/// When a rank throws, or ends without a result, the others are ended, and this throws `Error` with the rank
/// and what it said: with its code if it was an `Error` too, otherwise `kPeerLost`. A rank that fails with
/// `kPeerLost` is blamed only if no other one fails. No process is left over, even when this one is killed.
///
/// SIGINT, SIGTERM and SIGHUP to this process are passed on to the children; when these have ended, the
/// signal is raised here, so that this process's own handling of it goes on. If that returns, so does this
/// with the results, or throws as above.
///
/// Not to be called from two threads at a time (`kFailedPrecondition`); works again after any failure.
[[nodiscard]] std::vector<std::string> run_processes(
    const ProcessOptions& options, const std::function<std::string(const config::Process&)>& body);

}  // namespace hasten::launcher

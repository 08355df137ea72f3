#pragma once

#include <cstdint>
#include <optional>

namespace hasten::launcher {

/// What this machine, or the container's share of it, has for a run.
struct Machine {
  int cores = 1;         ///< that this process may use: by affinity, and by the cgroup's quota rounded up
  int cores_online = 1;  ///< of the machine
  std::uint64_t memory_total = 0;               ///< bytes
  std::uint64_t memory_available = 0;           ///< bytes that can be had without swapping
  std::optional<std::uint64_t> memory_limit{};  ///< bytes that the cgroup allows, where it limits them
};

/// Looks at the machine as it is now. Unknown sizes are 0.
[[nodiscard]] Machine this_machine();

/// Threads for each of `num_processes` processes that share this machine's cores: at least 1.
[[nodiscard]] int threads_per_process(int num_processes);

/// Throws `kInvalidArgument` unless 1 <= `num_processes`, and, without `oversubscribe`, at most four for each
/// core.
void require_sensible_count(int num_processes, bool oversubscribe);

}  // namespace hasten::launcher

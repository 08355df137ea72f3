#include <algorithm>
#include <cmath>
#include <fstream>
#include <sched.h>
#include <string>
#include <unistd.h>

#include <hasten/base/error.h>
#include <hasten/launcher/machine.h>

#include "launcher/cgroup.h"

namespace hasten::launcher {
namespace {

int cores_by_affinity(int online) {
  // A fixed set holds 1024 cores; on a larger machine the call fails, and all that are online count.
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : online;
}

void read_memory(Machine& machine) {
  std::ifstream file("/proc/meminfo");
  std::string name;
  std::uint64_t kibibytes = 0;
  for (std::string unit; file >> name >> kibibytes && std::getline(file, unit);) {
    if (name == "MemTotal:") machine.memory_total = kibibytes * 1024;
    if (name == "MemAvailable:") machine.memory_available = kibibytes * 1024;
  }
}

}  // namespace

Machine this_machine() {
  Machine machine;
  machine.cores_online = std::max(1, static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)));
  machine.cores = cores_by_affinity(machine.cores_online);
  const auto limits = cgroup_limits();
  if (limits.cores) machine.cores = std::min(machine.cores, static_cast<int>(std::ceil(*limits.cores)));
  machine.cores = std::max(machine.cores, 1);
  machine.memory_limit = limits.memory;
  read_memory(machine);
  return machine;
}

int threads_per_process(int num_processes) {
  return std::max(1, this_machine().cores / std::max(1, num_processes));
}

void require_sensible_count(int num_processes, bool oversubscribe) {
  require(num_processes >= 1, ErrorCode::kInvalidArgument, "launch", "the number of processes is ",
          num_processes, ", but must be at least 1. Set --num-processes (num_processes) to 1 or more.");
  constexpr int kMostPerCore = 4;
  const int cores = this_machine().cores;
  require(oversubscribe || num_processes <= kMostPerCore * cores, ErrorCode::kInvalidArgument, "launch",
          num_processes, " processes are more than make sense on ", cores, cores == 1 ? " core" : " cores",
          " (at most ", kMostPerCore * cores, "). Lower --num-processes (num_processes) to about ", cores,
          ", or allow it with --oversubscribe (oversubscribe).");
}

}  // namespace hasten::launcher

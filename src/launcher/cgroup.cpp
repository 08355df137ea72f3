#include "launcher/cgroup.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

namespace hasten::launcher {
namespace {

namespace fs = std::filesystem;

template <class Value>
void lower(std::optional<Value>& limit, Value value) {
  limit = limit ? std::min(*limit, value) : value;
}

/// The first number in a file of a cgroup; nothing when there is no file or it holds `max`.
std::optional<double> read_number(const fs::path& path) {
  double value = 0;
  if (std::ifstream(path) >> value) return value;
  return std::nullopt;
}

void read_folder(const fs::path& folder, CgroupLimits& limits) {
  // Version 2: "QUOTA PERIOD", in microseconds of processor time.
  double quota = 0;
  double period = 0;
  if (std::ifstream(folder / "cpu.max") >> quota >> period && period > 0) lower(limits.cores, quota / period);
  // Version 1; without a limit the quota is -1, and the memory a number near 2^63.
  const auto quota_v1 = read_number(folder / "cpu.cfs_quota_us");
  const auto period_v1 = read_number(folder / "cpu.cfs_period_us");
  if (quota_v1 && period_v1 && *quota_v1 > 0 && *period_v1 > 0) lower(limits.cores, *quota_v1 / *period_v1);
  constexpr double kUnlimited = 4.6e18;
  for (const auto* name : {"memory.max", "memory.limit_in_bytes"}) {
    const auto memory = read_number(folder / name);
    if (memory && *memory < kUnlimited) lower(limits.memory, static_cast<std::uint64_t>(*memory));
  }
}

bool lists(std::string_view controllers, std::string_view name) {
  return ("," + std::string(controllers) + ",").find("," + std::string(name) + ",") != std::string::npos;
}

}  // namespace

CgroupLimits cgroup_limits(const fs::path& root) {
  CgroupLimits limits;
  std::ifstream groups(root / "proc/self/cgroup");
  // A line is NUMBER:CONTROLLERS:PATH; version 2 is 0::PATH.
  for (std::string line; std::getline(groups, line);) {
    std::istringstream fields(line);
    std::string number;
    std::string controllers;
    std::string path;
    if (!std::getline(fields, number, ':') || !std::getline(fields, controllers, ':') ||
        !std::getline(fields, path)) {
      continue;
    }
    const bool matters = controllers.empty() || lists(controllers, "cpu") || lists(controllers, "memory");
    if (!matters) continue;
    const fs::path mount = root / "sys/fs/cgroup" / controllers;
    // Limits of the groups above hold as well. In a container the path may name folders that only the host
    // sees; the walk then ends at the mount, which is the container's own group.
    for (fs::path folder = fs::path(path).relative_path();; folder = folder.parent_path()) {
      read_folder(mount / folder, limits);
      if (folder.empty()) break;
    }
  }
  return limits;
}

}  // namespace hasten::launcher

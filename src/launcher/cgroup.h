#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace hasten::launcher {

/// What the cgroup of this process and the groups above it allow, of version 1 or 2.
struct CgroupLimits {
  std::optional<double> cores{};
  std::optional<std::uint64_t> memory{};  ///< bytes
};

/// `root` stands for `/`, so that tests can bring a tree of their own.
[[nodiscard]] CgroupLimits cgroup_limits(const std::filesystem::path& root = "/");

}  // namespace hasten::launcher

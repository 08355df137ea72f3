#pragma once

#include <optional>
#include <vector>

#include <hasten/config/precision.h>
#include <hasten/config/variable.h>

namespace hasten::config {

/// What the launcher's flags say about the training itself. It reaches the launched program by environment,
/// for what the program leaves open.
struct LaunchSettings {
  std::optional<Precision> mixed_precision{};  ///< HASTEN_MIXED_PRECISION: no, bf16 or fp16
  bool cpu = false;                            ///< HASTEN_CPU: stay on the CPU though there is an accelerator

  bool debug = false;  ///< HASTEN_DEBUG: compare what ranks do

  bool operator==(const LaunchSettings&) const = default;
};

/// Reads the settings that a launcher left. Throws `kInvalidArgument`, naming the variable, for a value that
/// is none of the choices.
[[nodiscard]] LaunchSettings settings_from_environment();

/// The variables that hand `settings` on. What is unset there is left out, so that an inherited variable
/// stays.
[[nodiscard]] std::vector<Variable> environment_of(const LaunchSettings& settings);

}  // namespace hasten::config

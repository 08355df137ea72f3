#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

/// The one place that reads the process's environment. Nothing here writes it.
namespace hasten::environment {

/// The variable's value; unset and empty are the same.
[[nodiscard]] std::optional<std::string> get(const char* name);

/// The variable as a whole number. Throws `kInvalidArgument`, naming the variable, when it is anything else
/// or lies outside [lowest, highest].
[[nodiscard]] std::optional<std::int64_t> get_integer(const char* name, std::int64_t lowest,
                                                      std::int64_t highest);

/// 1, true, yes, on against 0, false, no, off, in any case. Throws `kInvalidArgument` for anything else.
[[nodiscard]] std::optional<bool> get_flag(const char* name);

}  // namespace hasten::environment

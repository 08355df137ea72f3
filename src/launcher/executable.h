#pragma once

#include <string>

namespace hasten::launcher {

/// The path of the program that a shell would run for `name`: itself when it holds a slash, otherwise the
/// first executable file of that name in PATH. Throws `kNotFound`, or `kFailedPrecondition` when only a file
/// that may not be executed was found.
[[nodiscard]] std::string find_executable(const std::string& name);

}  // namespace hasten::launcher

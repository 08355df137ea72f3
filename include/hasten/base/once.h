#pragma once

#include <source_location>

namespace hasten {

/// Whether this place in the sources is reached for the first time in the process: `if (once()) warn();`.
/// Thread-safe: exactly one call is told so.
[[nodiscard]] bool once(const std::source_location& where = std::source_location::current());

}  // namespace hasten

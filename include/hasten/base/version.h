#pragma once

namespace hasten {

/// This library's version, "major.minor.patch".
[[nodiscard]] const char* version() noexcept;

}  // namespace hasten

#pragma once

#include <optional>
#include <string>

namespace hasten::config {

/// An environment variable as a launched process shall find it; without a value it shall be unset.
struct Variable {
  std::string name{};
  std::optional<std::string> value{};

  bool operator==(const Variable&) const = default;
};

}  // namespace hasten::config

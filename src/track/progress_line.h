#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hasten::track {

/// What a line of progress says.
struct Progress {
  std::string_view description{};
  std::int64_t count = 0;
  std::optional<std::int64_t> total{};
  std::optional<double> steps_per_second{};
  std::string_view unit{};
  double units_per_step = 1.0;
  std::optional<double> elapsed{};  ///< seconds, when the loop is over; time left is shown otherwise
};

using NamedValues = std::vector<std::pair<std::string, double>>;

/// The line without a bar, for files.
std::string plain_line(const Progress& progress, const NamedValues& values);

/// The line in at most `columns`. What does not fit is left out: values from the last, the bar, then the end.
std::string terminal_line(const Progress& progress, const NamedValues& values, std::size_t columns,
                          bool unicode);

}  // namespace hasten::track

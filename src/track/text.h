#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

/// Numbers and lines as people read them.
namespace hasten::track {

/// 4690 as "4,690".
std::string with_separators(std::int64_t number);

/// At most four significant digits: "0.1235", "24.41", "3126", "nan".
std::string short_number(double value);

/// Seconds as "0:07", "12:05", "3:00:00", "2d 3:00:00".
std::string duration(double seconds);

/// A size in bytes as "412 MiB".
std::string memory_size(std::int64_t bytes);

/// Columns that UTF-8 text takes on a terminal, each character counted as one.
std::size_t columns_of(std::string_view text);

/// The beginning of the text that takes at most `columns`.
std::string_view first_columns(std::string_view text, std::size_t columns);

/// The text with control characters, which would tear a line, as spaces.
std::string on_one_line(std::string_view text);

}  // namespace hasten::track

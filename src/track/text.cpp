#include "track/text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace hasten::track {
namespace {

template <class... Values>
std::string print(const char* format, Values... values) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), format, values...);
  return text.data();
}

bool begins_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
}

}  // namespace

std::string with_separators(std::int64_t number) {
  std::string text = std::to_string(number);
  const std::size_t first_digit = number < 0 ? 1 : 0;
  for (std::size_t at = text.size(); at > first_digit + 3;) text.insert(at -= 3, 1, ',');
  return text;
}

std::string short_number(double value) {
  const double size = std::abs(value);
  if (size >= 1000 && size < 1e9) return print("%.0f", value);
  return print("%.4g", value);
}

std::string duration(double seconds) {
  constexpr double kLongest = 1e12;  // keeps the conversion below defined
  const auto total = static_cast<long long>(std::clamp(seconds, 0.0, kLongest));
  const long long days = total / 86400;
  const long long hours = total / 3600 % 24;
  const long long minutes = total / 60 % 60;
  if (days > 0) return print("%lldd %lld:%02lld:%02lld", days, hours, minutes, total % 60);
  if (hours > 0) return print("%lld:%02lld:%02lld", hours, minutes, total % 60);
  return print("%lld:%02lld", minutes, total % 60);
}

std::string memory_size(std::int64_t bytes) {
  constexpr std::array<const char*, 5> kUnits{"bytes", "KiB", "MiB", "GiB", "TiB"};
  auto size = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; size >= 1024 && unit + 1 < kUnits.size(); ++unit) size /= 1024;
  return print(size < 10 && unit > 0 ? "%.1f %s" : "%.0f %s", size, kUnits[unit]);
}

std::size_t columns_of(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), begins_character));
}

std::string_view first_columns(std::string_view text, std::size_t columns) {
  std::size_t seen = 0;
  for (std::size_t i = 0; i < text.size(); ++i)
    if (begins_character(text[i]) && ++seen > columns) return text.substr(0, i);
  return text;
}

std::string on_one_line(std::string_view text) {
  std::string line(text);
  std::replace_if(
      line.begin(), line.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; },
      ' ');
  return line;
}

}  // namespace hasten::track

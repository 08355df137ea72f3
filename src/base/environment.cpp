#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdlib>

#include <hasten/base/environment.h>
#include <hasten/base/error.h>

namespace hasten::environment {

std::optional<std::string> get(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

std::optional<std::int64_t> get_integer(const char* name, std::int64_t lowest, std::int64_t highest) {
  const auto text = get(name);
  if (!text) return std::nullopt;
  std::int64_t value = 0;
  const char* end = text->data() + text->size();
  const auto [stop, status] = std::from_chars(text->data(), end, value);
  require(status == std::errc{} && stop == end && lowest <= value && value <= highest,
          ErrorCode::kInvalidArgument, "environment", name, " is '", *text,
          "', but must be a whole number from ", lowest, " to ", highest, ". Set it to one, or unset it.");
  return value;
}

std::optional<bool> get_flag(const char* name) {
  const auto text = get(name);
  if (!text) return std::nullopt;
  std::string lower = *text;
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
  constexpr std::array kTrue{"1", "true", "yes", "on"};
  constexpr std::array kFalse{"0", "false", "no", "off"};
  if (std::ranges::find(kTrue, lower) != kTrue.end()) return true;
  if (std::ranges::find(kFalse, lower) != kFalse.end()) return false;
  fail(ErrorCode::kInvalidArgument, "environment", name, " is '", *text,
       "', but must be one of 1, true, yes, on, 0, false, no, off.");
}

}  // namespace hasten::environment

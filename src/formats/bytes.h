#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// Numbers in bytes, and bytes as text, for the parsers and writers of this room.
namespace hasten::formats {

static_assert(std::endian::native == std::endian::little, "the formats map files as little-endian memory");

/// The number in the first `sizeof(Number)` bytes, lowest byte first. The caller has checked that they are
/// there.
template <std::unsigned_integral Number>
Number read_little_endian(std::span<const std::byte> bytes) {
  Number value = 0;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

/// The same, highest byte first.
template <std::unsigned_integral Number>
Number read_big_endian(std::span<const std::byte> bytes) {
  Number value = 0;
  for (std::size_t i = 0; i < sizeof value; ++i)
    value = static_cast<Number>((value << 8) | std::to_integer<Number>(bytes[i]));
  return value;
}

/// Appends the number's bytes, lowest first.
template <class Number>
void append_little_endian(std::string& out, Number value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}

inline std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

inline std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

}  // namespace hasten::formats

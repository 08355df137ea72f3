#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "formats/bytes.h"

/// Protocol Buffers' wire format (protobuf.dev/programming-guides/encoding), as much of it as is written
/// here.
namespace hasten::formats::protobuf {

inline void append_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>((value & 0x7f) | 0x80);
  out += static_cast<char>(value);
}

enum class WireType { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

inline void append_key(std::string& out, std::uint32_t field, WireType type) {
  append_varint(out, field << 3 | static_cast<std::uint32_t>(type));
}

/// An integer field; negative numbers take ten bytes.
inline void append_integer(std::string& out, std::uint32_t field, std::int64_t value) {
  append_key(out, field, WireType::kVarint);
  append_varint(out, static_cast<std::uint64_t>(value));
}

inline void append_double(std::string& out, std::uint32_t field, double value) {
  append_key(out, field, WireType::kFixed64);
  append_little_endian(out, value);
}

inline void append_float(std::string& out, std::uint32_t field, float value) {
  append_key(out, field, WireType::kFixed32);
  append_little_endian(out, value);
}

/// A text, or a message that is already encoded.
inline void append_bytes(std::string& out, std::uint32_t field, std::string_view value) {
  append_key(out, field, WireType::kBytes);
  append_varint(out, value.size());
  out += value;
}

}  // namespace hasten::formats::protobuf

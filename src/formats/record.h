#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>

#include <hasten/base/crc.h>

#include "formats/bytes.h"

/// TFRecord framing (tensorflow.org/tutorials/load_data/tfrecord): length, its checksum, the payload, its
/// checksum.
namespace hasten::formats {

/// CRC-32C, rotated and offset so that a checksum of data that holds checksums stays a good one.
inline std::uint32_t masked_crc32c(std::string_view bytes) {
  return std::rotr(crc32c(as_bytes(bytes)), 15) + 0xa282ead8U;
}

/// Appends one framed record.
inline void append_record(std::string& out, std::string_view payload) {
  std::string length;
  append_little_endian(length, static_cast<std::uint64_t>(payload.size()));
  out += length;
  append_little_endian(out, masked_crc32c(length));
  out += payload;
  append_little_endian(out, masked_crc32c(payload));
}

}  // namespace hasten::formats

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hasten::formats {

/// The type of an array's elements in a file. The order up to `kU64` is that in which safetensors files lay
/// out their tensors, last first, so that wider types come first and stay aligned.
enum class DType : std::uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3Fnuz,
  kF8E5M2Fnuz,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
  kC128,  ///< npy only; safetensors has no name for it
};

/// Bytes of one element.
[[nodiscard]] std::size_t size_of(DType dtype) noexcept;

/// The name in capitals, as safetensors files spell it: "F32", "BF16", "BOOL". `kC128` is "C128".
[[nodiscard]] std::string_view name_of(DType dtype) noexcept;

/// The type that safetensors files call `name`, or nothing.
[[nodiscard]] std::optional<DType> dtype_from_safetensors(std::string_view name) noexcept;

/// Bytes that an array takes, or nothing when a size is negative or the product of the non-zero sizes and the
/// element's size does not fit `int64_t` (sizes of zero do not hide such sizes: strides would overflow).
[[nodiscard]] std::optional<std::int64_t> byte_count(const std::vector<std::int64_t>& shape,
                                                     DType dtype) noexcept;

/// "[2, 3]", for messages.
[[nodiscard]] std::string to_string(const std::vector<std::int64_t>& shape);

}  // namespace hasten::formats

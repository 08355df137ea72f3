#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include <hasten/base/files.h>
#include <hasten/formats/dtype.h>

/// NumPy's .npy files, versions 1 to 3 (numpy.org/doc/stable/reference/generated/numpy.lib.format.html).
namespace hasten::formats {

/// An array as it lies in a file.
struct NpyArray {
  DType dtype = DType::kF32;
  bool big_endian = false;     ///< numbers lie highest byte first; never set for types of one byte
  bool fortran_order = false;  ///< the first index runs fastest
  std::vector<std::int64_t> shape{};
  std::span<const std::byte> bytes{};
  std::shared_ptr<const files::Map> map{};  ///< keeps `bytes` alive; null after `parse_npy`
};

/// Reads the layout of a file's bytes; the result points into `bytes`. `file` is its name in messages.
/// Throws `kCorruptData` unless the header is NumPy's and exactly the array follows it (naming the expected
/// and the real size), and `kInvalidArgument` for element types that are no numbers (texts, objects,
/// records).
[[nodiscard]] NpyArray parse_npy(std::span<const std::byte> bytes, std::string_view file);

/// Opens a file by memory map: elements cost memory when they are touched.
/// Throws `kNotFound`, `kSystem`, or what `parse_npy` throws.
[[nodiscard]] NpyArray read_npy(const std::filesystem::path& path);

/// Copies the elements in row-major order, lowest byte first, to `out`, whatever their order in the file.
/// `out` has as many bytes as `array.bytes`, else `kInvalidArgument`.
void copy_row_major(const NpyArray& array, std::span<std::byte> out);

/// Writes row-major, little-endian elements, byte for byte as `numpy.save` does. The file appears whole or
/// not at all. Throws `kInvalidArgument` for a type that NumPy lacks and for bytes that do not fit the shape,
/// `kSystem` when the disk is full.
void write_npy(const std::filesystem::path& path, DType dtype, const std::vector<std::int64_t>& shape,
               std::span<const std::byte> bytes);

}  // namespace hasten::formats

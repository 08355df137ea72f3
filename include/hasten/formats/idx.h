#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include <hasten/formats/dtype.h>

/// IDX files, the format of MNIST and its likes (yann.lecun.com/exdb/mnist): two zero bytes, the type, the
/// number of dimensions, each size as four bytes, then the elements, all highest byte first.
namespace hasten::formats {

/// An array of a file, with its numbers in this machine's byte order.
struct IdxArray {
  DType dtype = DType::kU8;
  std::vector<std::int64_t> shape{};
  std::span<const std::byte> bytes{};
  std::shared_ptr<const void> owner{};  ///< keeps `bytes` alive: the mapped file, or memory of its own
};

/// Opens a file, plain or compressed by gzip (told apart by the first bytes, not by the name). Plain files of
/// bytes are mapped, not read. Types: U8, I8, I16, I32, F32, F64. Throws `kNotFound`, `kSystem`, or
/// `kCorruptData`, naming the file, with the expected and the found size, when it is cut, too long, or no IDX
/// file. Compressed data is taken only up to the size that the header states.
[[nodiscard]] IdxArray read_idx(const std::filesystem::path& path);

/// The same for bytes in memory, which `owner` keeps alive; without an owner the result may point into bytes
/// that the caller must keep. `file` is the name in messages.
[[nodiscard]] IdxArray parse_idx(std::span<const std::byte> bytes, std::string_view file,
                                 std::shared_ptr<const void> owner = nullptr);

}  // namespace hasten::formats

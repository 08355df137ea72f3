#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <hasten/base/files.h>
#include <hasten/formats/dtype.h>

/// The safetensors format (github.com/huggingface/safetensors): eight bytes of header length, a JSON header
/// that names each tensor's type, shape and place, then the tensors' bytes.
namespace hasten::formats {

/// A named array whose bytes, row-major and little-endian, someone else owns.
/// Views that come from a file need not be aligned to their element's size: a writer is free to leave the
/// header unpadded. Views that `write_safetensors` laid out are.
struct TensorView {
  std::string name{};
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape{};
  std::span<const std::byte> bytes{};
};

/// What a file holds: the tensors in the order of their bytes, and the free texts of the header.
struct SafetensorsContents {
  std::vector<TensorView> tensors{};
  std::map<std::string, std::string> metadata{};
};

/// Reads the layout of a file's bytes; the views point into `bytes`. `file` is its name in messages.
/// Throws `kCorruptData`, naming file and tensor, unless the tensors cover the bytes after the header
/// exactly: once, without gap, overlap or rest, each with as many bytes as its shape asks for, under names
/// that occur once. Nothing is allocated on the word of a length in the file. Types below 8 bits are refused.
[[nodiscard]] SafetensorsContents parse_safetensors(std::span<const std::byte> bytes, std::string_view file);

/// A file opened by memory map: opening reads the header only, and tensors cost memory when they are touched.
class SafetensorsFile {
 public:
  /// Throws `kNotFound`, `kSystem`, or what `parse_safetensors` throws.
  explicit SafetensorsFile(const std::filesystem::path& path);

  /// All tensors, in the order of their bytes. They live as long as `map()`.
  [[nodiscard]] const std::vector<TensorView>& tensors() const noexcept { return contents_.tensors; }

  /// The tensor of that name, or null.
  [[nodiscard]] const TensorView* find(std::string_view name) const noexcept;

  /// The tensor of that name. Throws `kNotFound`, naming the file and the tensor.
  [[nodiscard]] const TensorView& at(std::string_view name) const;

  [[nodiscard]] const std::map<std::string, std::string>& metadata() const noexcept {
    return contents_.metadata;
  }

  /// The mapped file, for whoever must keep the bytes alive longer than this object.
  [[nodiscard]] const std::shared_ptr<const files::Map>& map() const noexcept { return map_; }

 private:
  std::shared_ptr<const files::Map> map_;
  SafetensorsContents contents_;
  std::map<std::string, std::size_t, std::less<>> index_;
};

/// Writes the tensors, in any order, as Python's `safetensors` package lays them out: by type, then by name,
/// the header padded with spaces to eight bytes. The file appears whole or not at all. Bytes go straight from
/// the views to the file. Metadata that is empty is left out. Throws `kInvalidArgument`, naming the tensor,
/// for a name that occurs twice, is `__metadata__` or is no UTF-8, for a type that the format lacks, and for
/// bytes that do not fit the shape; `kSystem` when the disk is full.
void write_safetensors(const std::filesystem::path& path, std::span<const TensorView> tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace hasten::formats

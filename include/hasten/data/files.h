#pragma once

#include <filesystem>

#include <ATen/core/Tensor.h>

namespace hasten::data {

/// A NumPy .npy file as a tensor over a memory map: elements cost memory when they are touched, and the map
/// lives as long as any tensor over it. The map is private: writing to the tensor changes neither the file
/// nor what others read. Column-major files give a tensor with strides to match; big-endian ones are copied
/// into memory of their own. Throws `kNotFound`, `kSystem`, and `kCorruptData` or `kInvalidArgument` as
/// `formats::read_npy` does.
[[nodiscard]] at::Tensor load_npy(const std::filesystem::path& path);

/// An IDX file, plain or compressed by gzip, as a tensor of its own memory. Throws what `formats::read_idx`
/// does.
[[nodiscard]] at::Tensor load_idx(const std::filesystem::path& path);

}  // namespace hasten::data

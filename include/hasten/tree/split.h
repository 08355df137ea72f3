#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include <ATen/core/Tensor.h>

#include <hasten/base/error.h>
#include <hasten/tree/tree.h>

/// Parts of batches along their samples, and their joining.
namespace hasten::tree {

namespace detail {
/// Rows [begin, end), and the last one again until there are `length`.
[[nodiscard]] at::Tensor cut(const at::Tensor& tensor, std::int64_t begin, std::int64_t end,
                             std::int64_t length);
/// Along dimension `dim`; 0-d tensors become one dimension.
[[nodiscard]] at::Tensor concatenate(const std::vector<at::Tensor>& parts, std::int64_t dim);
}  // namespace detail

/// How many samples a batch has: the length of its vectors and of its tensors' first dimensions. Throws
/// `kMismatch` when its parts differ, `kInvalidArgument` for parts that have no length.
template <class Batch>
[[nodiscard]] std::int64_t length_of(const Batch& batch) {
  if constexpr (std::same_as<Batch, at::Tensor>) {
    require(batch.defined() && batch.dim() > 0, ErrorCode::kInvalidArgument, "split",
            "a tensor without dimensions cannot be split.");
    return batch.size(0);
  } else if constexpr (detail::kIsVector<Batch>) {
    return static_cast<std::int64_t>(batch.size());
  } else {
    std::int64_t length = -1;
    const auto compare = [&](const auto& part) {
      const std::int64_t found = length_of(part);
      require(length < 0 || found == length, ErrorCode::kMismatch, "split", "the parts of the batch have ",
              length, " and ", found, " samples. Give parts of one length.");
      length = found;
    };
    if constexpr (detail::kIsMap<Batch>) {
      for (const auto& [key, part] : batch) compare(part);
    } else {
      static_assert(HasFields<Batch>,
                    "hasten: only tensors, vectors, and maps and structs of them can be split");
      std::apply([&](const auto&... part) { (compare(part), ...); }, fields_of(batch));
    }
    return std::max<std::int64_t>(length, 0);
  }
}

/// Samples [begin, end) of a batch of tensors, vectors, maps and structs, and its last sample again until
/// there are `length`.
template <class Batch>
[[nodiscard]] Batch cut(const Batch& batch, std::int64_t begin, std::int64_t end, std::int64_t length) {
  if constexpr (std::same_as<Batch, at::Tensor>) {
    return detail::cut(batch, begin, end, length);
  } else if constexpr (detail::kIsVector<Batch>) {
    Batch part(batch.begin() + begin, batch.begin() + end);
    if (!batch.empty()) part.resize(static_cast<std::size_t>(std::max(length, end - begin)), batch.back());
    return part;
  } else if constexpr (detail::kIsMap<Batch>) {
    Batch part;
    for (const auto& [key, value] : batch) part.emplace(key, cut(value, begin, end, length));
    return part;
  } else {
    Batch part = batch;
    std::apply([&](auto&... field) { ((field = cut(field, begin, end, length)), ...); }, fields_of(part));
    return part;
  }
}

/// The share of one of `parts` that split a batch evenly and in order; the first ones get one sample more
/// where it does not divide. With `padded` every share is as long as the longest, filled up with the batch's
/// last sample.
template <class Batch>
[[nodiscard]] Batch split(const Batch& batch, std::int64_t part, std::int64_t parts, bool padded = false) {
  const std::int64_t length = length_of(batch);
  const std::int64_t each = length / parts;
  const std::int64_t extras = length % parts;
  const std::int64_t begin = part * each + std::min(part, extras);
  const std::int64_t end = begin + each + (part < extras ? 1 : 0);
  return cut(batch, begin, end, padded ? each + (extras > 0 ? 1 : 0) : end - begin);
}

/// Joins batches of one structure along a dimension of their tensors. The other leaves are the first batch's.
/// Throws `kInvalidArgument` for no batches, `kMismatch` for shapes that do not fit.
template <class Batch>
[[nodiscard]] Batch concatenate(const std::vector<Batch>& batches, std::int64_t dim = 0) {
  require(!batches.empty(), ErrorCode::kInvalidArgument, "concatenate", "there are no batches to join.");
  return zip(batches, [&](const std::vector<at::Tensor>& parts) { return detail::concatenate(parts, dim); });
}

}  // namespace hasten::tree

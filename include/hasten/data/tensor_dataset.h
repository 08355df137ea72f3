#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include <ATen/core/Tensor.h>

#include <hasten/data/dataset.h>

namespace hasten::data {

namespace detail {
/// Throws `kMismatch`, listing the shapes, unless all tensors have one first dimension.
void check_tensors(std::span<const at::Tensor> tensors);
/// The rows of a tensor: copies, or a view of consecutive ones when `share` is set.
[[nodiscard]] at::Tensor rows(const at::Tensor& tensor, Indices indices, bool share);
}  // namespace detail

/// Samples that lie in tensors, along their first dimensions. A batch is an array of tensors, one for each,
/// or the tensor itself if there is one; gradients do not flow through it.
template <std::size_t N>
class TensorDataset {
 public:
  using Batch = std::conditional_t<N == 1, at::Tensor, std::array<at::Tensor, N>>;

  /// Throws `kMismatch` unless all tensors have equal first dimensions.
  explicit TensorDataset(std::array<at::Tensor, N> tensors) : tensors_(std::move(tensors)) {
    detail::check_tensors(tensors_);
  }

  /// Makes batches of consecutive samples views of the tensors instead of copies. That saves the copy, and a
  /// loop that changes its batch in place then changes the dataset.
  TensorDataset& share_memory(bool share = true) {
    share_ = share;
    return *this;
  }

  [[nodiscard]] std::int64_t size() const { return tensors_[0].size(0); }

  [[nodiscard]] Batch get_batch(Indices indices) const {
    if constexpr (N == 1) {
      return detail::rows(tensors_[0], indices, share_);
    } else {
      Batch batch;
      for (std::size_t i = 0; i < N; ++i) batch[i] = detail::rows(tensors_[i], indices, share_);
      return batch;
    }
  }

  [[nodiscard]] const std::array<at::Tensor, N>& tensors() const noexcept { return tensors_; }

 private:
  std::array<at::Tensor, N> tensors_;
  bool share_ = false;
};

/// `tensors(x, y)`: the dataset of the pairs (x[i], y[i]).
template <class... Tensor>
  requires(sizeof...(Tensor) > 0 && (std::is_convertible_v<Tensor, at::Tensor> && ...))
[[nodiscard]] auto tensors(Tensor&&... values) {
  return TensorDataset<sizeof...(Tensor)>({at::Tensor(std::forward<Tensor>(values))...});
}

}  // namespace hasten::data

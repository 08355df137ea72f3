#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace hasten::optim {

/// A list of tensors that is written anew in each step and nearly always gets the same ones: a tensor that is
/// already in its place costs a comparison instead of two atomic counts.
class TensorSlots {
 public:
  void rewind() noexcept { used_ = 0; }

  void add(const at::Tensor& tensor) {
    if (used_ == tensors_.size())
      tensors_.push_back(tensor);
    else if (!tensors_[used_].is_same(tensor))
      tensors_[used_] = tensor;
    ++used_;
  }

  /// Releases what an earlier, longer step left behind.
  void trim() {
    if (used_ != tensors_.size()) tensors_.resize(used_);
  }

  [[nodiscard]] std::size_t size() const noexcept { return used_; }
  [[nodiscard]] at::TensorList list() const noexcept { return {tensors_.data(), used_}; }

 private:
  std::vector<at::Tensor> tensors_;
  std::size_t used_ = 0;
};

/// Most tensors of state that an optimizer keeps for one parameter.
inline constexpr std::size_t kMostStates = 3;

/// What one fused call can take together.
struct BatchKey {
  std::size_t group = 0;
  at::Device device = at::kCPU;
  at::ScalarType dtype = at::kFloat;
  /// The step count, or for SGD whether this is the first step.
  std::int64_t mark = 0;

  bool operator==(const BatchKey&) const = default;
};

/// The parameters of one call with what belongs to them, in the same order.
struct Batch {
  BatchKey key;
  TensorSlots parameters;
  std::vector<at::Tensor> gradients;
  std::array<TensorSlots, kMostStates> states;
  /// The step count as ATen wants it: a float scalar on the device for each parameter, here always the same
  /// one.
  TensorSlots steps;
  at::Tensor step;

  void reset(const BatchKey& new_key);
  /// Ends gathering.
  void trim();
  /// Fills `steps` with the count in `key.mark`.
  void set_steps();
};

/// Whether elements lie in memory in the same order, so that a kernel that ignores strides treats them alike.
[[nodiscard]] bool same_layout(const at::Tensor& a, const at::Tensor& b);

/// `tensor`, or a copy of it with the device, dtype and memory layout of `parameter`.
[[nodiscard]] at::Tensor matched(const at::Tensor& tensor, const at::Tensor& parameter);

/// A complex tensor as a view of its real and imaginary parts; others unchanged.
[[nodiscard]] at::Tensor as_real(const at::Tensor& tensor);

}  // namespace hasten::optim

#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

/// Work on lists of gradients, in as few operator calls as their number of devices and types allows. Nothing
/// here waits for a device. Undefined entries are passed over.
namespace hasten::parallel {

/// The gradients of parameters, where there are some. A sparse gradient gives its coalesced values, which are
/// what norms and clipping act on.
[[nodiscard]] std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters);

/// (sum |g|^p)^(1/p) over all elements; the largest |g| for infinity. 0-d, on the first gradient's device, in
/// fp32, or in fp64 where a gradient is; 0 for none.
[[nodiscard]] at::Tensor norm(const std::vector<at::Tensor>& gradients, double norm_type);

/// Multiplies the gradients by min(1, max_norm / (total_norm + 1e-6)), as PyTorch's clip_grad_norm_ does.
void clip_to_norm_(const std::vector<at::Tensor>& gradients, const at::Tensor& total_norm, double max_norm);

/// Limits every element to [-limit, limit].
void clip_to_value_(const std::vector<at::Tensor>& gradients, double limit);

/// Multiplies the gradients by a factor.
void multiply_(const std::vector<at::Tensor>& gradients, double factor);

}  // namespace hasten::parallel

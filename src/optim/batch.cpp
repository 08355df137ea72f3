#include "optim/batch.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/view_as_real.h>

namespace hasten::optim {

void Batch::reset(const BatchKey& new_key) {
  if (key.device != new_key.device) step.reset();
  key = new_key;
  parameters.rewind();
  gradients.clear();
  for (TensorSlots& slots : states) slots.rewind();
}

void Batch::trim() {
  parameters.trim();
  for (TensorSlots& slots : states) slots.trim();
}

void Batch::set_steps() {
  if (!step.defined()) step = at::empty({}, at::TensorOptions(key.device).dtype(at::kFloat));
  // Where the host can reach the number, a store spares a kernel.
  if (step.is_cpu())
    *step.mutable_data_ptr<float>() = static_cast<float>(key.mark);
  else
    step.fill_(key.mark);
  steps.rewind();
  for (std::size_t i = 0; i < parameters.size(); ++i) steps.add(step);
  steps.trim();
}

bool same_layout(const at::Tensor& a, const at::Tensor& b) {
  if (a.is_contiguous() && b.is_contiguous()) return true;
  const auto sizes = a.sizes();
  const auto strides = a.strides();
  const auto other = b.strides();
  // The stride of a dimension of size 1 means nothing.
  for (std::size_t i = 0; i < sizes.size(); ++i)
    if (sizes[i] != 1 && strides[i] != other[i]) return false;
  return true;
}

at::Tensor matched(const at::Tensor& tensor, const at::Tensor& parameter) {
  if (tensor.scalar_type() == parameter.scalar_type() && tensor.device() == parameter.device() &&
      !tensor.is_neg() && !tensor.is_conj() && same_layout(tensor, parameter))
    return tensor;
  at::Tensor copy = at::empty_like(parameter);
  copy.copy_(tensor);
  return copy;
}

at::Tensor as_real(const at::Tensor& tensor) {
  return tensor.is_complex() ? at::view_as_real(tensor) : tensor;
}

}  // namespace hasten::optim

#include <algorithm>
#include <cstring>
#include <sstream>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_select.h>

#include <hasten/base/error.h>
#include <hasten/data/tensor_dataset.h>

namespace hasten::data::detail {
namespace {

bool are_consecutive(Indices indices) {
  for (std::size_t i = 1; i < indices.size(); ++i)
    if (indices[i] != indices[i - 1] + 1) return false;
  return true;
}

void check_indices(Indices indices, std::int64_t size) {
  // A negative number is a huge unsigned one.
  for (const std::int64_t index : indices)
    require(static_cast<std::uint64_t>(index) < static_cast<std::uint64_t>(size), ErrorCode::kInvalidArgument,
            "data::TensorDataset", "there is no sample ", index, " among ", size, ".");
}

at::Tensor copy_rows(const at::Tensor& tensor, Indices indices, bool consecutive) {
  c10::SmallVector<std::int64_t, 5> sizes(tensor.sizes().begin(), tensor.sizes().end());
  sizes[0] = static_cast<std::int64_t>(indices.size());
  at::Tensor batch = at::empty(sizes, tensor.options().requires_grad(false));
  if (batch.numel() == 0) return batch;
  const std::size_t row = batch.nbytes() / indices.size();
  const auto* from = static_cast<const std::byte*>(tensor.const_data_ptr());
  auto* to = static_cast<std::byte*>(batch.mutable_data_ptr());
  if (consecutive) {
    std::memcpy(to, from + static_cast<std::size_t>(indices[0]) * row, batch.nbytes());
  } else {
    for (const std::int64_t index : indices) {
      std::memcpy(to, from + static_cast<std::size_t>(index) * row, row);
      to += row;
    }
  }
  return batch;
}

}  // namespace

void check_tensors(std::span<const at::Tensor> tensors) {
  const auto fits = [&](const at::Tensor& tensor) {
    return tensor.defined() && tensor.dim() > 0 && tensor.size(0) == tensors[0].size(0);
  };
  if (std::all_of(tensors.begin(), tensors.end(), fits)) return;
  std::ostringstream shapes;
  for (const at::Tensor& tensor : tensors) {
    shapes << (shapes.tellp() > 0 ? ", " : "");
    if (tensor.defined()) {
      shapes << tensor.sizes();
    } else {
      shapes << "undefined";
    }
  }
  fail(ErrorCode::kMismatch, "data::TensorDataset",
       "the tensors have no common first dimension: their shapes are ", shapes.str(),
       ". Give tensors with one row for each sample.");
}

at::Tensor rows(const at::Tensor& tensor, Indices indices, bool share) {
  check_indices(indices, tensor.size(0));
  const bool consecutive = are_consecutive(indices);
  const auto count = static_cast<std::int64_t>(indices.size());
  // A batch is data, not part of a graph, and a view of it need not be tracked.
  const at::AutoDispatchBelowADInplaceOrView untracked;
  if (share && consecutive && count > 0) return tensor.narrow(0, indices[0], count);
  if (tensor.device().is_cpu() && tensor.layout() == at::kStrided && tensor.is_contiguous() &&
      !tensor.is_conj() && !tensor.is_neg())
    return copy_rows(tensor, indices, consecutive);
  const at::Tensor index =
      at::from_blob(const_cast<std::int64_t*>(indices.data()), {count}, at::TensorOptions(at::kLong));
  return at::index_select(tensor, 0, index.to(tensor.device()));
}

}  // namespace hasten::data::detail

#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <hasten/comm/group.h>
#include <hasten/tree/bytes.h>
#include <hasten/tree/tree.h>

/// The collectives of `Group` on batches of any structure (see `tree`). Every rank must call them with the
/// same structure. Leaves that are no tensors stay as they are; undefined tensors too.
namespace hasten::comm {

namespace detail {
template <class Batch, class F>
[[nodiscard]] Batch map_defined(Batch batch, F&& f) {
  return tree::map(std::move(batch),
                   [&](const at::Tensor& tensor) { return tensor.defined() ? f(tensor) : tensor; });
}
}  // namespace detail

/// Each tensor becomes all ranks' tensors joined along dimension 0. See `Group::gather`.
template <class Batch>
[[nodiscard]] Batch gather(Group& group, Batch batch) {
  return detail::map_defined(std::move(batch),
                             [&](const at::Tensor& tensor) { return group.gather(tensor); });
}

/// Each tensor becomes the reduction of all ranks' tensors. See `Group::all_reduce`.
template <class Batch>
[[nodiscard]] Batch reduce(Group& group, Batch batch, ReduceOp op = ReduceOp::kSum) {
  return detail::map_defined(std::move(batch),
                             [&](const at::Tensor& tensor) { return group.all_reduce(tensor, op); });
}

/// Each tensor becomes a copy of that of rank `root`. See `Group::broadcast_`.
template <class Batch>
[[nodiscard]] Batch broadcast(Group& group, Batch batch, int root = 0) {
  return detail::map_defined(std::move(batch), [&](const at::Tensor& tensor) {
    at::Tensor copy = tensor.detach().clone();
    group.broadcast_(copy, root);
    return copy;
  });
}

/// All ranks' values, in the order of ranks: anything that `tree::to_bytes` takes. Tensors arrive on the CPU.
template <class T>
[[nodiscard]] std::vector<T> gather_object(Group& group, const T& value) {
  std::vector<T> all;
  for (const std::string& bytes : group.all_gather_bytes(tree::to_bytes(value)))
    all.push_back(tree::from_bytes<T>(bytes));
  return all;
}

/// The value of rank `root`, as `gather_object` sends it; what the others give is ignored.
template <class T>
[[nodiscard]] T broadcast_object(Group& group, const T& value, int root = 0) {
  return tree::from_bytes<T>(
      group.broadcast_bytes(group.rank() == root ? tree::to_bytes(value) : std::string(), root));
}

/// Replaces the elements by those of rank `root`, which may be more or fewer.
template <class T>
void broadcast_object_list(Group& group, std::vector<T>& values, int root = 0) {
  values = broadcast_object(group, values, root);
}

/// The tensor made as long along `dim` as the longest of all ranks, filled up with `pad_index` behind its
/// values, or before them with `pad_first`. A negative `dim` counts from the last. A tensor without that
/// dimension is returned as it is. The other dimensions must agree for the result to be gathered.
[[nodiscard]] at::Tensor pad_tensor_across(Group& group, const at::Tensor& tensor, std::int64_t dim,
                                           const at::Scalar& pad_index, bool pad_first);

/// `pad_tensor_across` on each tensor.
template <class Batch>
[[nodiscard]] Batch pad_across(Group& group, Batch batch, std::int64_t dim = 0,
                               const at::Scalar& pad_index = 0, bool pad_first = false) {
  return detail::map_defined(std::move(batch), [&](const at::Tensor& tensor) {
    return pad_tensor_across(group, tensor, dim, pad_index, pad_first);
  });
}

}  // namespace hasten::comm

#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <hasten/tree/fields.h>

/// Batches of any shape: a tensor, or a pair, tuple, struct, vector, array, map or optional of batches.
/// Numbers, strings and other things in one travel along unchanged. Every part of the library that touches
/// the tensors of a batch goes through here, so that a new kind of container is taught to all of them at
/// once: by being an aggregate (nothing to do), or by a specialisation of `Fields`.
namespace hasten::tree {

namespace detail {

template <class T>
inline constexpr bool kIsVector = false;
template <class T, class A>
inline constexpr bool kIsVector<std::vector<T, A>> = true;
template <class T, std::size_t N>
inline constexpr bool kIsVector<std::array<T, N>> = true;

template <class T>
inline constexpr bool kIsMap = false;
template <class K, class V, class C, class A>
inline constexpr bool kIsMap<std::map<K, V, C, A>> = true;
template <class K, class V, class H, class E, class A>
inline constexpr bool kIsMap<std::unordered_map<K, V, H, E, A>> = true;

template <class T>
inline constexpr bool kIsOptional = false;
template <class T>
inline constexpr bool kIsOptional<std::optional<T>> = true;

template <class T>
inline constexpr bool kAlwaysFalse = false;

}  // namespace detail

/// Calls `visit` on a reference to each tensor of the batch, in a fixed order: fields as declared, elements
/// in order, map entries in the map's order.
template <class Batch, class Visit>
void for_each(Batch& batch, Visit&& visit) {
  using T = std::remove_const_t<Batch>;
  if constexpr (std::same_as<T, at::Tensor>) {
    visit(batch);
  } else if constexpr (detail::kIsVector<T>) {
    if constexpr (!std::is_arithmetic_v<typename T::value_type>)
      for (auto& element : batch) for_each(element, visit);
  } else if constexpr (detail::kIsMap<T>) {
    for (auto& [key, value] : batch) for_each(value, visit);
  } else if constexpr (detail::kIsOptional<T>) {
    if (batch) for_each(*batch, visit);
  } else if constexpr (HasFields<T>) {
    std::apply([&](auto&... field) { (for_each(field, visit), ...); }, fields_of(batch));
  }
  // Anything else is a leaf without tensors.
}

/// The batch with each tensor `t` replaced by `f(t)`.
template <class Batch, class F>
[[nodiscard]] Batch map(Batch batch, F&& f) {
  for_each(batch, [&](at::Tensor& tensor) { tensor = f(std::as_const(tensor)); });
  return batch;
}

/// The tensors of a batch, in the order of `for_each`.
template <class Batch>
[[nodiscard]] std::vector<at::Tensor> flatten(const Batch& batch) {
  std::vector<at::Tensor> tensors;
  for_each(batch, [&](const at::Tensor& tensor) { tensors.push_back(tensor); });
  return tensors;
}

/// The batch with its tensors replaced by `tensors`, which must be as many as `flatten` gives.
template <class Batch>
[[nodiscard]] Batch unflatten(Batch like, std::vector<at::Tensor> tensors) {
  std::size_t next = 0;
  for_each(like, [&](at::Tensor& tensor) { tensor = std::move(tensors.at(next++)); });
  return like;
}

/// Joins batches of one structure: `f` gets the tensors that stand at one place, one of each batch, and gives
/// the joined tensor. Containers must have equal lengths and keys. The result's other leaves and keys are
/// those of the first batch. `batches` must not be empty.
template <class Batch, class F>
[[nodiscard]] Batch zip(const std::vector<Batch>& batches, F&& f) {
  std::vector<std::vector<at::Tensor>> columns;
  for (const Batch& batch : batches) {
    std::size_t place = 0;
    for_each(batch, [&](const at::Tensor& tensor) {
      if (place == columns.size()) columns.emplace_back();
      columns[place++].push_back(tensor);
    });
  }
  std::size_t place = 0;
  return map(batches.at(0), [&](const at::Tensor&) { return f(columns[place++]); });
}

/// The first tensor of a batch with at least one dimension, whose first dimension is the batch's size;
/// undefined if there is none.
template <class Batch>
[[nodiscard]] at::Tensor first_tensor(const Batch& batch) {
  at::Tensor found;
  for_each(batch, [&](const at::Tensor& tensor) {
    if (!found.defined() && tensor.defined() && tensor.dim() > 0) found = tensor;
  });
  return found;
}

}  // namespace hasten::tree

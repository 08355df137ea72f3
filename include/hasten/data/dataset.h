#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <hasten/base/error.h>
#include <hasten/data/collate.h>
#include <hasten/data/random.h>

/// What a dataset is: anything with `size()` (a number, or an optional one) and one of
///
///     get_batch(std::span<const std::int64_t>, const BatchContext&)   a batch, or a vector of samples
///     get_batch(std::span<const std::int64_t>)                        the same
///     get_batch(c10::ArrayRef<std::size_t>)                           the same, as LibTorch's datasets do
///     get(index, const BatchContext&)                                 a sample
///     get(index)                                                      a sample
///
/// of which the first that exists is used. A `std::vector` from `get_batch` is taken as samples to be joined,
/// anything else as a finished batch. A dataset whose reading is const is shared by a loader's workers; of
/// one whose reading is not, each worker has a copy, as in LibTorch.
namespace hasten::data {

/// Numbers of samples.
using Indices = std::span<const std::int64_t>;

template <class D>
concept ReadsBatchesInContext = requires(D& d, Indices i, const BatchContext& c) { d.get_batch(i, c); };
template <class D>
concept ReadsBatches = requires(D& d, Indices i) { d.get_batch(i); };
template <class D>
concept ReadsLibTorchBatches = requires(D& d, c10::ArrayRef<std::size_t> i) { d.get_batch(i); };
template <class D>
concept ReadsSamplesInContext = requires(D& d, std::int64_t i, const BatchContext& c) { d.get(i, c); };
template <class D>
concept ReadsSamples = requires(D& d, std::int64_t i) { d.get(i); };

template <class D>
concept Readable = ReadsBatchesInContext<D> || ReadsBatches<D> || ReadsLibTorchBatches<D> ||
                   ReadsSamplesInContext<D> || ReadsSamples<D>;

namespace detail {

template <class H>
inline constexpr bool kIsReference = false;
template <class D>
inline constexpr bool kIsReference<std::reference_wrapper<D>> = true;

/// A loader is given a dataset, or a handle of one: a pointer of any kind or a `std::reference_wrapper`.
template <class H>
inline constexpr bool kIsHandle = kIsReference<H> || std::is_pointer_v<H> || requires(const H& handle) {
  typename H::element_type;
  *handle;
};

/// The dataset behind what a loader was given.
template <class H>
[[nodiscard]] auto& dataset_of(H& given) {
  if constexpr (kIsReference<std::remove_const_t<H>>) {
    return given.get();
  } else if constexpr (kIsHandle<std::remove_const_t<H>>) {
    return *given;
  } else {
    return given;
  }
}

template <class H>
using DatasetOf = std::remove_reference_t<decltype(dataset_of(std::declval<H&>()))>;

/// The number of samples. Throws `kInvalidArgument` for a dataset that does not know it.
template <class D>
[[nodiscard]] std::int64_t size_of(const D& dataset) {
  const auto size = dataset.size();
  if constexpr (std::is_integral_v<std::remove_const_t<decltype(size)>>) {
    return static_cast<std::int64_t>(size);
  } else {
    require(static_cast<bool>(size), ErrorCode::kInvalidArgument, "data::Loader",
            "the dataset does not know its size. Give it a size() that returns the number of samples.");
    return static_cast<std::int64_t>(*size);
  }
}

/// Reads samples; `at` is the place in `indices` of the sample being read, where they are read one by one.
template <Readable D>
[[nodiscard]] auto read(D& dataset, Indices indices, const BatchContext& context, std::size_t& at) {
  if constexpr (ReadsBatchesInContext<D>) {
    return dataset.get_batch(indices, context);
  } else if constexpr (ReadsBatches<D>) {
    return dataset.get_batch(indices);
  } else if constexpr (ReadsLibTorchBatches<D>) {
    // The signed and the unsigned form of one type may share memory.
    return dataset.get_batch(
        c10::ArrayRef<std::size_t>(reinterpret_cast<const std::size_t*>(indices.data()), indices.size()));
  } else {
    const auto get = [&](std::int64_t index) {
      if constexpr (ReadsSamplesInContext<D>) {
        return dataset.get(index, context);
      } else {
        return dataset.get(index);
      }
    };
    std::vector<decltype(get(0))> samples;
    samples.reserve(indices.size());
    for (at = 0; at < indices.size(); ++at) samples.push_back(get(indices[at]));
    return samples;
  }
}

template <class T>
inline constexpr bool kIsSamples = false;
template <class T, class A>
inline constexpr bool kIsSamples<std::vector<T, A>> = true;

/// Makes a batch of what a dataset gave.
template <class Raw, class Collate>
[[nodiscard]] auto finish(Raw raw, const Collate& collate) {
  if constexpr (kIsSamples<Raw>) {
    return collate(std::move(raw));
  } else if constexpr (TargetlessExample<Raw>) {
    return std::move(raw.data);
  } else {
    return raw;
  }
}

template <class D, class Collate>
using BatchOf = decltype(finish(read(std::declval<D&>(), {}, {}, std::declval<std::size_t&>()),
                                std::declval<const Collate&>()));

}  // namespace detail
}  // namespace hasten::data

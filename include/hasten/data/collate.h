#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <hasten/base/error.h>
#include <hasten/tree/tree.h>

/// Samples into a batch, as PyTorch's `default_collate` does it:
///
/// | a sample's part            | the batch's part                                                    |
/// |----------------------------|---------------------------------------------------------------------|
/// | tensor                     | tensor with a new first dimension; the shapes must be equal         |
/// | bool, integer or enum      | bool or int64 tensor of one dimension                               |
/// | float, double              | float32, float64 tensor of one dimension                            |
/// | pair, tuple, Example       | the same of the joined parts                                        |
/// | struct                     | the same struct if joining keeps its fields' types, otherwise a     |
/// |                            | tuple of the joined fields in their order                           |
/// | vector or array of numbers | tensor of two dimensions; the lengths must be equal                 |
/// | other vector, map, optional| the same of the joined elements; lengths, keys, presence are equal  |
/// | anything else (strings)    | `std::vector` of the parts                                          |
namespace hasten::data {

namespace detail {

/// Tensors of one shape along a new first dimension. Throws `kMismatch` that gives both shapes otherwise.
[[nodiscard]] at::Tensor stack(const std::vector<at::Tensor>& samples);
[[noreturn]] void fail_uneven(std::size_t sample, std::size_t length, std::size_t expected);

/// An uninitialised tensor on the CPU.
[[nodiscard]] at::Tensor empty(c10::IntArrayRef sizes, at::ScalarType type);

template <class T>
inline constexpr bool kIsNumber = std::is_arithmetic_v<T> || std::is_enum_v<T>;

/// The C++ type of the elements of the tensor that joins such numbers, and its LibTorch name.
template <class T>
using Element =
    std::conditional_t<std::is_same_v<T, bool> || std::is_floating_point_v<T>,
                       std::conditional_t<std::is_same_v<T, long double>, double, T>, std::int64_t>;
template <class T>
inline constexpr at::ScalarType kElement = std::is_same_v<Element<T>, bool>     ? at::kBool
                                           : std::is_same_v<Element<T>, float>  ? at::kFloat
                                           : std::is_same_v<Element<T>, double> ? at::kDouble
                                                                                : at::kLong;

/// Joins the values that stand at one place of all samples.
template <class T>
struct Column {
  using Joined = std::vector<T>;
  static Joined join(std::vector<T>&& values) { return std::move(values); }
};

template <class T>
using Joined = typename Column<T>::Joined;

template <>
struct Column<at::Tensor> {
  using Joined = at::Tensor;
  static Joined join(std::vector<at::Tensor>&& values) { return stack(values); }
};

template <class T>
  requires kIsNumber<T>
struct Column<T> {
  using Joined = at::Tensor;
  static Joined join(std::vector<T>&& values) {
    at::Tensor joined = empty({static_cast<std::int64_t>(values.size())}, kElement<T>);
    auto* out = static_cast<Element<T>*>(joined.mutable_data_ptr());
    for (std::size_t i = 0; i < values.size(); ++i) out[i] = static_cast<Element<T>>(values[i]);
    return joined;
  }
};

/// Vectors and arrays: of numbers into rows of a tensor, of other things place by place.
template <class Sequence>
struct SequenceColumn {
  using T = typename Sequence::value_type;

  static std::size_t common_length(const std::vector<Sequence>& values) {
    for (std::size_t i = 0; i < values.size(); ++i)
      if (values[i].size() != values[0].size()) fail_uneven(i, values[i].size(), values[0].size());
    return values.empty() ? 0 : values[0].size();
  }

  static at::Tensor join_rows(std::vector<Sequence>&& values) {
    const std::size_t length = common_length(values);
    at::Tensor joined =
        empty({static_cast<std::int64_t>(values.size()), static_cast<std::int64_t>(length)}, kElement<T>);
    auto* out = static_cast<Element<T>*>(joined.mutable_data_ptr());
    for (const Sequence& row : values)
      for (const auto& value : row) *out++ = static_cast<Element<T>>(value);
    return joined;
  }

  static std::vector<T> take_place(std::vector<Sequence>& values, std::size_t place) {
    std::vector<T> column;
    column.reserve(values.size());
    for (Sequence& value : values) column.push_back(std::move(value[place]));
    return column;
  }
};

template <class T>
struct Column<std::vector<T>> {
  using Joined = std::conditional_t<kIsNumber<T>, at::Tensor, std::vector<detail::Joined<T>>>;
  static Joined join(std::vector<std::vector<T>>&& values) {
    using Rows = SequenceColumn<std::vector<T>>;
    if constexpr (kIsNumber<T>) {
      return Rows::join_rows(std::move(values));
    } else {
      Joined joined;
      const std::size_t length = Rows::common_length(values);
      for (std::size_t place = 0; place < length; ++place)
        joined.push_back(Column<T>::join(Rows::take_place(values, place)));
      return joined;
    }
  }
};

template <class T, std::size_t N>
struct Column<std::array<T, N>> {
  using Joined = std::conditional_t<kIsNumber<T>, at::Tensor, std::array<detail::Joined<T>, N>>;
  static Joined join(std::vector<std::array<T, N>>&& values) {
    using Rows = SequenceColumn<std::array<T, N>>;
    if constexpr (kIsNumber<T>) {
      return Rows::join_rows(std::move(values));
    } else {
      Joined joined;
      for (std::size_t place = 0; place < N; ++place)
        joined[place] = Column<T>::join(Rows::take_place(values, place));
      return joined;
    }
  }
};

template <class Map, class Out>
struct MapColumn {
  using Joined = Out;
  static Joined join(std::vector<Map>&& values) {
    Joined joined;
    for (const auto& [key, unused] : values.at(0)) {
      std::vector<typename Map::mapped_type> column;
      column.reserve(values.size());
      for (std::size_t i = 0; i < values.size(); ++i) {
        const auto found = values[i].find(key);
        require(found != values[i].end() && values[i].size() == values[0].size(), ErrorCode::kMismatch,
                "data::Stack", "sample ", i,
                " of a batch has other keys than sample 0. Give every sample the same keys, or give "
                "the loader a collate function.");
        column.push_back(found->second);
      }
      joined.emplace(key, Column<typename Map::mapped_type>::join(std::move(column)));
    }
    return joined;
  }
};

template <class K, class V>
struct Column<std::map<K, V>> : MapColumn<std::map<K, V>, std::map<K, Joined<V>>> {};
template <class K, class V>
struct Column<std::unordered_map<K, V>>
    : MapColumn<std::unordered_map<K, V>, std::unordered_map<K, Joined<V>>> {};

template <class T>
struct Column<std::optional<T>> {
  using Joined = std::optional<detail::Joined<T>>;
  static Joined join(std::vector<std::optional<T>>&& values) {
    std::vector<T> column;
    for (auto& value : values)
      if (value) column.push_back(std::move(*value));
    require(column.empty() || column.size() == values.size(), ErrorCode::kMismatch, "data::Stack",
            "an optional part is present in ", column.size(), " of the ", values.size(),
            " samples of a batch. Give it in all or in none, or give the loader a collate function.");
    if (column.empty()) return std::nullopt;
    return Column<T>::join(std::move(column));
  }
};

/// The type of a batch of things with fields: the same template of the joined fields where there is one, the
/// same struct where joining changes no type, a tuple otherwise.
template <class T, class... Field>
struct Rebuilt {
  static constexpr bool kUnchanged = (std::is_same_v<Field, Joined<Field>> && ...);
  using type = std::conditional_t<kUnchanged, T, std::tuple<Joined<Field>...>>;
};
template <class A, class B>
struct Rebuilt<std::pair<A, B>, A, B> {
  using type = std::pair<Joined<A>, Joined<B>>;
};
template <template <class, class> class Example, class A, class B>
  requires tree::detail::ExampleLike<Example<A, B>>
struct Rebuilt<Example<A, B>, A, B> {
  using type = Example<Joined<A>, Joined<B>>;
};

template <class T, class References>
struct FieldsColumn;
template <class T, class... Field>
struct FieldsColumn<T, std::tuple<Field&...>> {
  using Joined = typename Rebuilt<T, Field...>::type;

  static Joined join(std::vector<T>&& values) { return join(values, std::index_sequence_for<Field...>()); }

 private:
  template <std::size_t... I>
  static Joined join(std::vector<T>& values, std::index_sequence<I...>) {
    return Joined{Column<Field>::join(take_field<I, Field>(values))...};
  }
  template <std::size_t I, class F>
  static std::vector<F> take_field(std::vector<T>& values) {
    std::vector<F> column;
    column.reserve(values.size());
    for (T& value : values) column.push_back(std::move(std::get<I>(tree::fields_of(value))));
    return column;
  }
};

template <class T>
  requires tree::HasFields<T>
struct Column<T> : FieldsColumn<T, decltype(tree::fields_of(std::declval<T&>()))> {};

/// LibTorch's `Example` without a target: only its data counts.
template <class T>
concept TargetlessExample = requires(T& value) {
  typename T::DataType;
  requires std::is_void_v<typename T::TargetType>;
  value.data;
};

template <TargetlessExample T>
struct Column<T> {
  using Joined = detail::Joined<typename T::DataType>;
  static Joined join(std::vector<T>&& values) {
    std::vector<typename T::DataType> column;
    column.reserve(values.size());
    for (T& value : values) column.push_back(std::move(value.data));
    return Column<typename T::DataType>::join(std::move(column));
  }
};

}  // namespace detail

/// The type of a batch of samples of type T, by the table above.
template <class T>
using Collated = detail::Joined<T>;

/// The collate function that a loader uses unless it is given another: any callable from
/// `std::vector<Sample>` to a batch. Throws `kMismatch` where samples do not fit together.
struct Stack {
  template <class Sample>
  [[nodiscard]] Collated<Sample> operator()(std::vector<Sample> samples) const {
    return detail::Column<Sample>::join(std::move(samples));
  }
};

}  // namespace hasten::data

#pragma once

#include <cstddef>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

namespace hasten::tree {

/// The fields of a type that is a batch of several things. Specialise it for a class that is no aggregate:
/// `static auto tie(T& value)` and its `const` form return a `std::tuple` of references to the fields.
template <class T>
struct Fields {};

namespace detail {

/// Converts to anything, so that the number of fields of an aggregate can be found by trying.
struct Anything {
  template <class T>
  operator T() const;  // NOLINT: never defined, used in unevaluated expressions only
};

template <class T, std::size_t... I>
constexpr bool takes_values(std::index_sequence<I...>) {
  return requires { T{(static_cast<void>(I), Anything{})...}; };
}

inline constexpr std::size_t kMostFields = 12;

template <class T, std::size_t N = kMostFields>
constexpr std::size_t count_fields() {
  if constexpr (N == 0) {
    return 0;
  } else if constexpr (takes_values<T>(std::make_index_sequence<N>())) {
    return N;
  } else {
    return count_fields<T, N - 1>();
  }
}

template <class T>
concept HasTie = requires(T& value) { Fields<std::remove_const_t<T>>::tie(value); };

template <class T>
concept TupleLike = requires { std::tuple_size<std::remove_const_t<T>>::value; };

/// LibTorch's `Example<Data, Target>`: told by its members, since including it would cost seconds.
template <class T>
concept ExampleLike = requires(T& value) {
  typename T::DataType;
  typename T::TargetType;
  value.data;
  value.target;
};

template <class T>
concept Aggregate = std::is_class_v<T> && std::is_aggregate_v<std::remove_const_t<T>> && !TupleLike<T>;

}  // namespace detail

template <class T>
concept HasFields =
    detail::HasTie<T> || detail::TupleLike<T> || detail::ExampleLike<T> || detail::Aggregate<T>;

/// A `std::tuple` of references to the fields of a pair, tuple, aggregate, or type with `Fields`.
template <class T>
auto fields_of(T& value) {
  if constexpr (detail::HasTie<T>) {
    return Fields<std::remove_const_t<T>>::tie(value);
  } else if constexpr (detail::TupleLike<T>) {
    return std::apply([](auto&... field) { return std::tie(field...); }, value);
  } else if constexpr (detail::ExampleLike<T>) {
    return std::tie(value.data, value.target);
  } else {
    constexpr std::size_t kCount = detail::count_fields<std::remove_const_t<T>>();
    static_assert(kCount > 0 || std::is_empty_v<T>,
                  "hasten: this struct's fields cannot be told; specialise hasten::tree::Fields for it");
    if constexpr (kCount == 0) {
      return std::tuple<>();
    } else if constexpr (kCount == 1) {
      auto& [a] = value;
      return std::tie(a);
    } else if constexpr (kCount == 2) {
      auto& [a, b] = value;
      return std::tie(a, b);
    } else if constexpr (kCount == 3) {
      auto& [a, b, c] = value;
      return std::tie(a, b, c);
    } else if constexpr (kCount == 4) {
      auto& [a, b, c, d] = value;
      return std::tie(a, b, c, d);
    } else if constexpr (kCount == 5) {
      auto& [a, b, c, d, e] = value;
      return std::tie(a, b, c, d, e);
    } else if constexpr (kCount == 6) {
      auto& [a, b, c, d, e, f] = value;
      return std::tie(a, b, c, d, e, f);
    } else if constexpr (kCount == 7) {
      auto& [a, b, c, d, e, f, g] = value;
      return std::tie(a, b, c, d, e, f, g);
    } else if constexpr (kCount == 8) {
      auto& [a, b, c, d, e, f, g, h] = value;
      return std::tie(a, b, c, d, e, f, g, h);
    } else if constexpr (kCount == 9) {
      auto& [a, b, c, d, e, f, g, h, i] = value;
      return std::tie(a, b, c, d, e, f, g, h, i);
    } else if constexpr (kCount == 10) {
      auto& [a, b, c, d, e, f, g, h, i, j] = value;
      return std::tie(a, b, c, d, e, f, g, h, i, j);
    } else if constexpr (kCount == 11) {
      auto& [a, b, c, d, e, f, g, h, i, j, k] = value;
      return std::tie(a, b, c, d, e, f, g, h, i, j, k);
    } else {
      auto& [a, b, c, d, e, f, g, h, i, j, k, l] = value;
      return std::tie(a, b, c, d, e, f, g, h, i, j, k, l);
    }
  }
}

}  // namespace hasten::tree

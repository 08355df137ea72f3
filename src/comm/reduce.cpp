#include "comm/reduce.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <type_traits>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

namespace hasten::comm {
namespace {

/// What a type is added up in.
template <class T>
using Wide = std::conditional_t<std::is_same_v<T, c10::BFloat16> || std::is_same_v<T, c10::Half>, float, T>;

struct Sum {
  // Unsigned, since integers wrap around as they do in LibTorch.
  template <class A>
  A operator()(A a, A b) const {
    if constexpr (std::is_integral_v<A>) {
      using U = std::make_unsigned_t<A>;
      return static_cast<A>(static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
    } else {
      return a + b;
    }
  }
};

struct Product {
  template <class A>
  A operator()(A a, A b) const {
    if constexpr (std::is_integral_v<A>) {
      // Through 64 bits: two unsigned shorts are multiplied as int, which may overflow.
      return static_cast<A>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
    } else {
      return a * b;
    }
  }
};

struct Max {
  template <class A>
  A operator()(A a, A b) const {
    return a > b || a != a ? a : b;
  }
};

struct Min {
  template <class A>
  A operator()(A a, A b) const {
    return a < b || a != a ? a : b;
  }
};

constexpr std::size_t kBlock = 512;

/// Works in blocks that stay in the first-level cache, so that each input is read once.
template <class T, class Op>
void reduce_as(Op op, std::byte* out, const std::byte* const* inputs, int input_count, std::size_t elements,
               bool mean) noexcept {
  using A = Wide<T>;
  std::array<A, kBlock> sums;
  const A divisor = static_cast<A>(input_count);
  for (std::size_t begin = 0; begin < elements; begin += kBlock) {
    const std::size_t count = std::min(kBlock, elements - begin);
    const T* first = reinterpret_cast<const T*>(inputs[0]) + begin;
    for (std::size_t i = 0; i < count; ++i) sums[i] = static_cast<A>(first[i]);
    for (int r = 1; r < input_count; ++r) {
      const T* input = reinterpret_cast<const T*>(inputs[r]) + begin;
      for (std::size_t i = 0; i < count; ++i) sums[i] = op(sums[i], static_cast<A>(input[i]));
    }
    if constexpr (std::is_floating_point_v<A>) {
      if (mean)
        for (std::size_t i = 0; i < count; ++i) sums[i] /= divisor;
    }
    T* target = reinterpret_cast<T*>(out) + begin;
    for (std::size_t i = 0; i < count; ++i) target[i] = static_cast<T>(sums[i]);
  }
}

template <class T>
void reduce_type(Reduction reduction, std::byte* out, const std::byte* const* inputs, int input_count,
                 std::size_t elements) noexcept {
  switch (reduction) {
    case Reduction::kSum:
      return reduce_as<T>(Sum(), out, inputs, input_count, elements, false);
    case Reduction::kMean:
      return reduce_as<T>(Sum(), out, inputs, input_count, elements, true);
    case Reduction::kMax:
      return reduce_as<T>(Max(), out, inputs, input_count, elements, false);
    case Reduction::kMin:
      return reduce_as<T>(Min(), out, inputs, input_count, elements, false);
    case Reduction::kProduct:
      return reduce_as<T>(Product(), out, inputs, input_count, elements, false);
  }
}

}  // namespace

std::size_t size_of(Element element) noexcept {
  switch (element) {
    case Element::kFloat64:
    case Element::kInt64:
      return 8;
    case Element::kFloat32:
    case Element::kInt32:
      return 4;
    case Element::kBFloat16:
    case Element::kFloat16:
    case Element::kInt16:
      return 2;
    case Element::kInt8:
    case Element::kUInt8:
    case Element::kBool:
      return 1;
  }
  return 1;
}

std::string_view name_of(Element element) noexcept {
  switch (element) {
    case Element::kFloat32:
      return "float32";
    case Element::kFloat64:
      return "float64";
    case Element::kBFloat16:
      return "bfloat16";
    case Element::kFloat16:
      return "float16";
    case Element::kInt64:
      return "int64";
    case Element::kInt32:
      return "int32";
    case Element::kInt16:
      return "int16";
    case Element::kInt8:
      return "int8";
    case Element::kUInt8:
      return "uint8";
    case Element::kBool:
      return "bool";
  }
  return "?";
}

std::string_view name_of(Reduction reduction) noexcept {
  switch (reduction) {
    case Reduction::kSum:
      return "sum";
    case Reduction::kMean:
      return "mean";
    case Reduction::kMax:
      return "max";
    case Reduction::kMin:
      return "min";
    case Reduction::kProduct:
      return "product";
  }
  return "?";
}

void reduce(Element element, Reduction reduction, std::byte* out, const std::byte* const* inputs,
            int input_count, std::size_t elements) noexcept {
  switch (element) {
    case Element::kFloat32:
      return reduce_type<float>(reduction, out, inputs, input_count, elements);
    case Element::kFloat64:
      return reduce_type<double>(reduction, out, inputs, input_count, elements);
    case Element::kBFloat16:
      return reduce_type<c10::BFloat16>(reduction, out, inputs, input_count, elements);
    case Element::kFloat16:
      return reduce_type<c10::Half>(reduction, out, inputs, input_count, elements);
    case Element::kInt64:
      return reduce_type<std::int64_t>(reduction, out, inputs, input_count, elements);
    case Element::kInt32:
      return reduce_type<std::int32_t>(reduction, out, inputs, input_count, elements);
    case Element::kInt16:
      return reduce_type<std::int16_t>(reduction, out, inputs, input_count, elements);
    case Element::kInt8:
      return reduce_type<std::int8_t>(reduction, out, inputs, input_count, elements);
    case Element::kUInt8:
      return reduce_type<std::uint8_t>(reduction, out, inputs, input_count, elements);
    case Element::kBool: {
      const bool any = reduction == Reduction::kSum || reduction == Reduction::kMax;
      return reduce_type<std::uint8_t>(any ? Reduction::kMax : Reduction::kMin, out, inputs, input_count,
                                       elements);
    }
  }
}

}  // namespace hasten::comm

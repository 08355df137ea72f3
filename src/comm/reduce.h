#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace hasten::comm {

/// Types of elements that can be reduced here.
enum class Element : std::uint8_t {
  kFloat32,
  kFloat64,
  kBFloat16,
  kFloat16,
  kInt64,
  kInt32,
  kInt16,
  kInt8,
  kUInt8,
  kBool
};

/// How the ranks' values become one. The mean is the sum divided by the number of ranks.
enum class Reduction : std::uint8_t { kSum, kMean, kMax, kMin, kProduct };

[[nodiscard]] std::size_t size_of(Element element) noexcept;
[[nodiscard]] std::string_view name_of(Element element) noexcept;
[[nodiscard]] std::string_view name_of(Reduction reduction) noexcept;

/// out[i] = inputs[0][i] op inputs[1][i] op ..., in that order, so that every rank gets the same bits. 16-bit
/// floats are added up in 32 bits and rounded once. A NaN in any input gives NaN. Booleans: sum and max are
/// "or", the others "and". The mean of integers is not defined here. `out` may be one of the inputs.
void reduce(Element element, Reduction reduction, std::byte* out, const std::byte* const* inputs,
            int input_count, std::size_t elements) noexcept;

}  // namespace hasten::comm

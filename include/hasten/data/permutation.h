#pragma once

#include <cstdint>
#include <vector>

namespace hasten::data {

/// A shuffled order of 0 .. size-1 that is a function of (size, seed, epoch) alone: equal in every process
/// and on every machine. Fisher-Yates with the draws of `Random`, held as 4 bytes a sample.
class Permutation {
 public:
  Permutation() = default;
  /// Throws `kInvalidArgument` unless size lies in [0, 2^32].
  Permutation(std::int64_t size, std::uint64_t seed, std::int64_t epoch);

  [[nodiscard]] std::int64_t size() const noexcept { return static_cast<std::int64_t>(order_.size()); }
  /// The sample at a position of the order.
  [[nodiscard]] std::int64_t operator[](std::int64_t position) const noexcept {
    return order_[static_cast<std::size_t>(position)];
  }

 private:
  std::vector<std::uint32_t> order_;
};

}  // namespace hasten::data

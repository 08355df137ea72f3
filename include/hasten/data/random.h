#pragma once

#include <cstdint>

namespace hasten::data {

/// The finaliser of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014):
/// a bijection of 64-bit numbers each of whose output bits depends on all input bits.
[[nodiscard]] constexpr std::uint64_t mix(std::uint64_t x) noexcept {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

/// Random numbers that are a function of (seed, epoch, sample, number of the draw): the same in any thread,
/// in any process, on any machine, and after a resume. It is SplitMix64 started at a key made of the first
/// three.
class Random {
 public:
  constexpr Random(std::uint64_t seed, std::int64_t epoch, std::int64_t sample) noexcept
      : key_(chain(chain(mix(seed + kStep), epoch), sample)) {}

  /// The next 64 random bits.
  constexpr std::uint64_t bits() noexcept { return mix(key_ += kStep); }

  /// A whole number in [0, n); n must be positive. Multiplies instead of dividing, which favours no number by
  /// more than n / 2^64.
  constexpr std::int64_t below(std::int64_t n) noexcept {
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::int64_t>((static_cast<Wide>(bits()) * static_cast<Wide>(n)) >> 64);
  }

  /// A multiple of 2^-53 in [0, 1).
  constexpr double uniform() noexcept { return static_cast<double>(bits() >> 11) * 0x1p-53; }

  /// True with this probability.
  constexpr bool chance(double probability) noexcept { return uniform() < probability; }

 private:
  static constexpr std::uint64_t kStep = 0x9E3779B97F4A7C15U;  // 2^64 / golden ratio, odd

  static constexpr std::uint64_t chain(std::uint64_t key, std::int64_t value) noexcept {
    return mix(key + static_cast<std::uint64_t>(value) * kStep);
  }

  std::uint64_t key_;
};

/// What a dataset may know about the pass it reads for. Random augmentation drawn from `random(sample)` does
/// not depend on workers, processes or restarts.
struct BatchContext {
  std::uint64_t seed = 0;
  std::int64_t epoch = 0;

  [[nodiscard]] constexpr Random random(std::int64_t sample) const noexcept { return {seed, epoch, sample}; }
};

}  // namespace hasten::data

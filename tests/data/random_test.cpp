#include <algorithm>
#include <array>
#include <cmath>
#include <gtest/gtest.h>
#include <set>

#include <hasten/base/error.h>
#include <hasten/data/permutation.h>
#include <hasten/data/random.h>

namespace hasten {
namespace {

std::vector<std::int64_t> order(std::int64_t size, std::uint64_t seed, std::int64_t epoch) {
  const data::Permutation permutation(size, seed, epoch);
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; i < permutation.size(); ++i) values.push_back(permutation[i]);
  return values;
}

TEST(Random, IsSplitMixOverItsKey) {
  // The first outputs of the published generator for the state 1234567.
  std::uint64_t state = 1234567;
  const auto next = [&] { return data::mix(state += 0x9E3779B97F4A7C15U); };
  EXPECT_EQ(next(), 6457827717110365317U);
  EXPECT_EQ(next(), 3203168211198807973U);
  EXPECT_EQ(next(), 9817491932198370423U);
}

TEST(Random, DependsOnSeedEpochSampleAndDraw) {
  std::set<std::uint64_t> values;
  for (std::uint64_t seed = 0; seed < 4; ++seed)
    for (std::int64_t epoch = 0; epoch < 4; ++epoch)
      for (std::int64_t sample = 0; sample < 100; ++sample) {
        data::Random random = data::BatchContext{seed, epoch}.random(sample);
        data::Random again(seed, epoch, sample);
        for (int draw = 0; draw < 4; ++draw) {
          const std::uint64_t bits = random.bits();
          EXPECT_EQ(bits, again.bits());
          values.insert(bits);
        }
      }
  EXPECT_EQ(values.size(), 4U * 4 * 100 * 4);
}

TEST(Random, DrawsNumbersInTheirRangeEquallyOften) {
  std::array<int, 9> counts{};
  double sum = 0;
  constexpr int kDraws = 90000;
  for (int i = 0; i < kDraws; ++i) {
    data::Random random(3, 1, i);
    ++counts.at(static_cast<std::size_t>(random.below(9)));
    const double uniform = random.uniform();
    ASSERT_GE(uniform, 0);
    ASSERT_LT(uniform, 1);
    sum += uniform;
  }
  // Five standard deviations of a binomial count, and of a mean of uniform numbers.
  const double deviation = std::sqrt(kDraws * (1.0 / 9) * (8.0 / 9));
  for (const int count : counts) EXPECT_NEAR(count, kDraws / 9.0, 5 * deviation);
  EXPECT_NEAR(sum / kDraws, 0.5, 5 * std::sqrt(1.0 / 12 / kDraws));
}

TEST(Permutation, HoldsEverySampleOnce) {
  for (const std::int64_t size : {0, 1, 2, 3, 1000, 65537}) {
    auto values = order(size, 7, 0);
    ASSERT_EQ(static_cast<std::int64_t>(values.size()), size);
    std::sort(values.begin(), values.end());
    for (std::int64_t i = 0; i < size; ++i) ASSERT_EQ(values[static_cast<std::size_t>(i)], i);
  }
}

TEST(Permutation, IsAFunctionOfSeedAndEpoch) {
  EXPECT_EQ(order(24, 7, 1), order(24, 7, 1));
  EXPECT_NE(order(24, 7, 0), order(24, 7, 1));
  EXPECT_NE(order(24, 7, 1), order(24, 7, 2));
  EXPECT_NE(order(24, 7, 0), order(24, 8, 0));
}

TEST(Permutation, KeepsItsValues) {
  // These orders are in checkpoints: a resumed run must find them again. tests/golden/data/orders.py makes
  // them.
  EXPECT_EQ(order(10, 0, 0), (std::vector<std::int64_t>{3, 7, 0, 6, 4, 1, 9, 5, 2, 8}));
  EXPECT_EQ(order(10, 1234, 5), (std::vector<std::int64_t>{4, 2, 0, 1, 5, 6, 7, 8, 9, 3}));
}

TEST(Permutation, PutsEverySampleEverywhereEquallyOften) {
  // Chi-square of sample against place over many seeds: 81 degrees of freedom, mean 81, deviation 12.7.
  constexpr int kSeeds = 20000;
  std::array<std::array<int, 10>, 10> counts{};
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const data::Permutation permutation(10, seed, 0);
    for (std::size_t place = 0; place < 10; ++place)
      ++counts[place][static_cast<std::size_t>(permutation[static_cast<std::int64_t>(place)])];
  }
  double chi = 0;
  for (const auto& row : counts)
    for (const int count : row) chi += (count - kSeeds / 10.0) * (count - kSeeds / 10.0) / (kSeeds / 10.0);
  EXPECT_LT(std::abs(chi - 81), 5 * 12.7);
}

TEST(Permutation, RefusesASizeBeyondItsNumbers) {
  EXPECT_THROW(data::Permutation(-1, 0, 0), Error);
  EXPECT_THROW(data::Permutation((std::int64_t{1} << 32) + 1, 0, 0), Error);
}

}  // namespace
}  // namespace hasten

#include <cmath>
#include <gtest/gtest.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <hasten/metrics/metrics.h>

#include "support/errors.h"

namespace hasten {
namespace {

using test::error_of;
using namespace hasten::metrics;

at::Tensor classes(std::vector<std::int64_t> values) {
  return at::tensor(values, at::kLong);
}

TEST(Accuracy, CountsClassesAndHighestScores) {
  Accuracy accuracy;
  EXPECT_TRUE(std::isnan(accuracy.compute()));
  accuracy.update(classes({1, 2, 0}), classes({1, 0, 0}));
  accuracy.update(at::tensor({0.1F, 0.9F, 0.8F, 0.2F}).view({2, 2}), classes({1, 1}));
  EXPECT_DOUBLE_EQ(accuracy.compute(), 3.0 / 5);
  accuracy.update(at::zeros({0, 2}), classes({}));
  EXPECT_DOUBLE_EQ(accuracy.compute(), 3.0 / 5);
  // A class for each token of a text.
  accuracy.reset();
  accuracy.update(at::ones({2, 3, 4}), at::zeros({2, 3}, at::kLong));
  EXPECT_DOUBLE_EQ(accuracy.compute(), 1.0);
  EXPECT_EQ(error_of([&] { accuracy.update(classes({1, 2}), classes({1})); }).first, ErrorCode::kMismatch);
}

TEST(TopK, CountsWhatIsAmongTheHighest) {
  const at::Tensor scores = at::tensor({4.0F, 3.0F, 2.0F, 1.0F, 1.0F, 2.0F, 3.0F, 4.0F}).view({2, 4});
  for (const auto& [k, expected] : {std::pair(1, 0.0), std::pair(2, 0.5), std::pair(3, 1.0)}) {
    TopK top(k);
    top.update(scores, classes({1, 1}));
    EXPECT_DOUBLE_EQ(top.compute(), expected) << k;
  }
  TopK too_many(5);
  EXPECT_EQ(error_of([&] { too_many.update(scores, classes({1, 1})); }).first, ErrorCode::kMismatch);
  EXPECT_THROW(TopK(0), Error);
}

TEST(Mean, WeighsItsValues) {
  Mean mean;
  mean.update(at::tensor({1.0F, 2.0F, 6.0F}));
  mean.update(at::full({}, 11.0F));
  EXPECT_DOUBLE_EQ(mean.compute(), 5.0);
  Mean weighted;
  // The mean of nothing is NaN, and counts nothing.
  weighted.update(at::tensor({4.0F, 0.0F, std::nanf("")}), at::tensor({1.0F, 3.0F, 0.0F}));
  EXPECT_DOUBLE_EQ(weighted.compute(), 1.0);
  EXPECT_EQ(error_of([&] { weighted.update(at::ones({2}), at::ones({3})); }).first, ErrorCode::kMismatch);
  // A million small values beside a large one, which fp32 would lose.
  Mean exact;
  exact.update(at::full({1}, 1e9));
  exact.update(at::full({1000000}, 0.25F));
  EXPECT_NEAR(exact.compute() * 1000001, 1e9 + 250000, 1e-3);
}

TEST(Perplexity, IsTheExponentialOfTheMeanOverTokens) {
  Perplexity perplexity;
  // Even chances of 4 words: a perplexity of 4, whatever the batches; ignored tokens count nothing.
  perplexity.update(at::zeros({2, 3, 4}), classes({0, 1, 2, 3, -100, -100}).view({2, 3}));
  EXPECT_NEAR(perplexity.compute(), 4.0, 1e-6);
  perplexity.reset();
  // Chances 3/4 and 1/4 of the right word: (16 / 3)^(1/2).
  const float odds = std::log(3.0F);
  perplexity.update(at::tensor({odds, 0.0F, odds, 0.0F}).view({2, 2}), classes({0, 1}));
  EXPECT_NEAR(perplexity.compute(), std::sqrt(16.0 / 3), 1e-5);
  EXPECT_EQ(error_of([&] { perplexity.update(at::zeros({2, 4}), classes({0})); }).first,
            ErrorCode::kMismatch);
}

TEST(F1, AveragesAsItIsTold) {
  // Targets 0 0 0 1 1 2, predictions 0 0 1 1 2 2. Class 0: TP 2, FP 0, FN 1: 4/5. Class 1: TP 1, FP 1, FN 1:
  // 1/2. Class 2: TP 1, FP 1, FN 0: 2/3. Class 3 does not occur.
  const at::Tensor targets = classes({0, 0, 0, 1, 1, 2});
  const at::Tensor predictions = classes({0, 0, 1, 1, 2, 2});
  for (const auto& [averaging, expected] :
       {std::pair(Averaging::kMacro, (0.8 + 0.5 + 2.0 / 3) / 3), std::pair(Averaging::kMicro, 4.0 / 6),
        std::pair(Averaging::kWeighted, (3 * 0.8 + 2 * 0.5 + 2.0 / 3) / 6)}) {
    F1 f1(4, averaging);
    EXPECT_TRUE(std::isnan(f1.compute()));
    f1.update(predictions.narrow(0, 0, 2), targets.narrow(0, 0, 2));
    f1.update(predictions.narrow(0, 2, 4), targets.narrow(0, 2, 4));
    EXPECT_NEAR(f1.compute(), expected, 1e-12);
  }
  F1 binary(2, Averaging::kBinary);
  binary.update(classes({1, 1, 0, 0}), classes({1, 0, 1, 0}));
  EXPECT_NEAR(binary.compute(), 0.5, 1e-12);
  EXPECT_THROW(F1(3, Averaging::kBinary), Error);
}

TEST(Metrics, OfSeveralProcessesAreThoseOfTheirSums) {
  Accuracy a;
  Accuracy b;
  a.update(classes({1, 1, 1}), classes({1, 1, 0}));
  b.update(classes({0}), classes({1}));
  EXPECT_DOUBLE_EQ(a.value_of(a.sums() + b.sums()), 0.5);
  EXPECT_EQ(error_of([&] { (void)a.value_of(at::zeros({3})); }).first, ErrorCode::kMismatch);
}

}  // namespace
}  // namespace hasten

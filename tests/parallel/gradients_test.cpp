#include <cmath>
#include <gtest/gtest.h>
#include <limits>

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <hasten/parallel/gradients.h>

namespace hasten {
namespace {

using parallel::clip_to_norm_;
using parallel::clip_to_value_;
using parallel::gradients_of;
using parallel::norm;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// A parameter with this gradient, of this type.
at::Tensor with_gradient(std::vector<double> values, at::ScalarType type = at::kFloat) {
  const auto count = static_cast<std::int64_t>(values.size());
  at::Tensor parameter = at::zeros({count}, type).set_requires_grad(true);
  parameter.mutable_grad() = at::tensor(values, at::kDouble).to(type);
  return parameter;
}

TEST(GradientNorm, IsThatOfAllElementsTogether) {
  const auto gradients = gradients_of({with_gradient({3, 0}), at::zeros({4}), with_gradient({0, -4, 12})});
  EXPECT_EQ(norm(gradients, 2).item<double>(), 13.0);
  EXPECT_EQ(norm(gradients, 1).item<double>(), 19.0);
  EXPECT_EQ(norm(gradients, kInfinity).item<double>(), 12.0);
  EXPECT_NEAR(norm(gradients, 3).item<double>(), std::cbrt(27.0 + 64 + 1728), 1e-5);
  EXPECT_EQ(norm({}, 2).item<double>(), 0.0);
}

TEST(GradientNorm, TakesTypesTogether) {
  // 2^24 + 1 needs more than fp32's bits: an fp64 gradient keeps its own.
  const std::vector<at::Tensor> mixed{with_gradient({3}, at::kBFloat16), with_gradient({4}, at::kHalf),
                                      with_gradient({12}), with_gradient({84}, at::kDouble)};
  const at::Tensor all = norm(gradients_of(mixed), 2);
  EXPECT_EQ(all.scalar_type(), at::kDouble);
  EXPECT_NEAR(all.item<double>(), 85.0, 1e-5);
  EXPECT_EQ(norm(gradients_of({with_gradient({16777217}, at::kDouble)}), 2).item<double>(), 16777217.0);
  clip_to_norm_(gradients_of(mixed), all, 8.5);
  EXPECT_NEAR(mixed[0].grad().item<double>(), 0.3, 2e-3);
  EXPECT_NEAR(mixed[3].grad().item<double>(), 8.4, 1e-6);
  EXPECT_EQ(mixed[0].grad().scalar_type(), at::kBFloat16);
}

TEST(GradientNorm, OfHalfPrecisionIsComputedInFp32) {
  // 10,000 squares of 100 leave fp16's range, and 8 bits of the root would be off by up to 0.4 %.
  const at::Tensor half = with_gradient(std::vector<double>(10000, 100), at::kHalf);
  EXPECT_EQ(norm(gradients_of({half}), 2).item<double>(), 10000.0);
  const at::Tensor bf16 = with_gradient(std::vector<double>(10001, 1), at::kBFloat16);
  EXPECT_NEAR(norm(gradients_of({bf16}), 2).item<double>(), std::sqrt(10001.0), 1e-4);
}

TEST(GradientNorm, AddsUpTheEqualIndicesOfSparseGradients) {
  at::Tensor table = at::zeros({4, 2}).set_requires_grad(true);
  // Row 1 twice: 1 + 2 and 1 + 3, row 3 once. Dense: {3, 4} and {0, 12}.
  table.mutable_grad() =
      at::sparse_coo_tensor(at::tensor({1, 3, 1}, at::kLong).view({1, 3}),
                            at::tensor({1.0F, 1.0F, 0.0F, 12.0F, 2.0F, 3.0F}).view({3, 2}), {4, 2});
  const auto gradients = gradients_of({table});
  EXPECT_EQ(norm(gradients, 2).item<double>(), 13.0);
  clip_to_norm_(gradients, norm(gradients, 2), 6.5);
  EXPECT_TRUE(
      table.grad().to_dense().allclose(at::tensor({0, 0, 3, 4, 0, 0, 0, 12}, at::kFloat).view({4, 2}) / 2));
  clip_to_value_(gradients_of({table}), 1.75);
  EXPECT_NEAR(table.grad().to_dense().max().item<double>(), 1.75, 1e-6);
}

TEST(Clipping, LeavesSmallGradientsAsTheyAre) {
  const at::Tensor parameter = with_gradient({0.3, 0.4});
  const at::Tensor before = parameter.grad().clone();
  const auto gradients = gradients_of({parameter});
  clip_to_norm_(gradients, norm(gradients, 2), 0.6);
  EXPECT_TRUE(parameter.grad().equal(before));
}

TEST(Clipping, OfInfinitiesIsWhatPyTorchComputes) {
  // An infinite norm gives the factor 0: finite gradients vanish, infinite ones become NaN.
  const at::Tensor parameter = with_gradient({1, kInfinity});
  const auto gradients = gradients_of({parameter});
  const at::Tensor total = norm(gradients, 2);
  EXPECT_EQ(total.item<double>(), kInfinity);
  clip_to_norm_(gradients, total, 1);
  EXPECT_EQ(parameter.grad()[0].item<double>(), 0.0);
  EXPECT_TRUE(std::isnan(parameter.grad()[1].item<double>()));
  const at::Tensor undefined = with_gradient({std::nan(""), 1});
  EXPECT_TRUE(std::isnan(norm(gradients_of({undefined}), 2).item<double>()));
  EXPECT_TRUE(std::isnan(norm(gradients_of({undefined}), kInfinity).item<double>()));
}

TEST(Clipping, LimitsEachElement) {
  const at::Tensor a = with_gradient({-3, 0.5, 3});
  const at::Tensor b = with_gradient({-kInfinity, 7}, at::kDouble);
  clip_to_value_(gradients_of({a, b}), 2);
  EXPECT_TRUE(a.grad().equal(at::tensor({-2.0F, 0.5F, 2.0F})));
  EXPECT_TRUE(b.grad().equal(at::tensor({-2.0, 2.0}, at::kDouble)));
}

}  // namespace
}  // namespace hasten

#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <nlohmann/json.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>

#include <hasten/base/error.h>
#include <hasten/base/files.h>
#include <hasten/precision/autocast.h>
#include <hasten/precision/grad_scaler.h>

namespace hasten {
namespace {

using precision::Autocast;
using precision::GradScaler;

TEST(Autocast, ComputesInTheLowerPrecisionWhileItLives) {
  const at::Tensor a = at::ones({2, 2});
  {
    const Autocast scope(at::kCPU, Precision::kBf16);
    EXPECT_EQ(at::matmul(a, a).scalar_type(), at::kBFloat16);
    {
      const Autocast inner(at::kCPU, Precision::kFp16);
      EXPECT_EQ(at::matmul(a, a).scalar_type(), at::kHalf);
    }
    EXPECT_EQ(at::matmul(a, a).scalar_type(), at::kBFloat16);
  }
  EXPECT_EQ(at::matmul(a, a).scalar_type(), at::kFloat);
}

TEST(Autocast, EndsWhenAnExceptionPasses) {
  EXPECT_THROW(
      {
        const Autocast scope(at::kCPU, Precision::kBf16);
        throw std::runtime_error("in the loop");
      },
      std::runtime_error);
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
}

TEST(Autocast, UsesFreshWeightsOnceTheCacheIsCleared) {
  const at::Tensor x = at::ones({1, 1});
  at::Tensor weight = at::ones({1, 1}).set_requires_grad(true);
  const Autocast scope(at::kCPU, Precision::kBf16);
  EXPECT_EQ(at::matmul(x, weight).item<float>(), 1);
  {
    const at::NoGradGuard no_grad;
    weight.zero_();
  }
  precision::clear_cast_cache();
  EXPECT_EQ(at::matmul(x, weight).item<float>(), 0);
}

TEST(Precision, ReadsItsNames) {
  for (const auto precision : {Precision::kNo, Precision::kBf16, Precision::kFp16})
    EXPECT_EQ(parse_precision(name(precision), "the test"), precision);
  EXPECT_THROW((void)parse_precision("fp8", "the test"), Error);
}

// tests/golden/precision/grad_scaler.json states the inputs beside what PyTorch's scaler gave.
TEST(GradScaler, EqualsPyTorchOnEveryPatternOfOverflows) {
  const auto golden = nlohmann::json::parse(files::read(HASTEN_GOLDEN_DIR "/precision/grad_scaler.json"));
  ASSERT_GT(golden.at("cases").size(), 0U);
  for (const auto& recorded : golden.at("cases")) {
    GradScaler scaler({.init_scale = recorded.at("init_scale"),
                       .growth_factor = recorded.at("growth_factor"),
                       .backoff_factor = recorded.at("backoff_factor"),
                       .growth_interval = recorded.at("growth_interval")});
    at::Tensor parameter = at::ones({3});
    for (std::size_t step = 0; step < recorded.at("overflow").size(); ++step) {
      at::Tensor gradient = at::full({3}, 0.125 * scaler.scale());
      if (recorded["overflow"][step]) gradient[1].fill_(std::numeric_limits<float>::infinity());
      const bool overflow =
          GradScaler::unscale({gradient, at::Tensor()}, scaler.scale(), at::kCPU).item<float>() != 0;
      if (!overflow) parameter.sub_(gradient, 0.5);
      scaler.update(overflow);
      EXPECT_EQ(overflow, recorded["step_skipped"][step].get<bool>());
      EXPECT_EQ(scaler.scale(), recorded["scale_after"][step].get<double>());
      EXPECT_EQ(parameter[0].item<float>(), recorded["parameter_after"][step].get<float>());
    }
  }
}

TEST(GradScaler, FindsNanInAnyTypeOfGradient) {
  const at::Tensor fine = at::full({2}, 8.0);
  const at::Tensor bad = at::full({2}, std::nan(""), at::kDouble);
  EXPECT_EQ(GradScaler::unscale({fine}, 4.0, at::kCPU).item<float>(), 0);
  EXPECT_EQ(fine[0].item<float>(), 2);
  EXPECT_EQ(GradScaler::unscale({fine, bad}, 4.0, at::kCPU).item<float>(), 1);
  EXPECT_EQ(GradScaler::unscale({}, 4.0, at::kCPU).item<float>(), 0);
}

TEST(GradScaler, GoesOnFromItsState) {
  GradScaler first({.init_scale = 8.0, .growth_interval = 2});
  first.update(false);
  GradScaler second({.init_scale = 1.0, .growth_interval = 2});
  second.load_state(first.state());
  second.update(false);
  EXPECT_EQ(second.scale(), 16.0);
  EXPECT_THROW(second.load_state({.scale = 0, .growth_tracker = 0}), Error);
}

TEST(GradScaler, RefusesFactorsThatCannotWork) {
  EXPECT_THROW(GradScaler({.init_scale = 0}), Error);
  EXPECT_THROW(GradScaler({.growth_factor = 1.0}), Error);
  EXPECT_THROW(GradScaler({.backoff_factor = 1.0}), Error);
  EXPECT_THROW(GradScaler({.growth_interval = 0}), Error);
}

}  // namespace
}  // namespace hasten

#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/optim/lbfgs.h>

#include <hasten/base/error.h>
#include <hasten/optim/stepper.h>

#include "optim/optimizers.h"

namespace hasten {
namespace {

using optim::Stepper;
using test::Json;
using test::leaf;
using test::value;
using ::testing::HasSubstr;

/// Every kind that is batched, with options that make it keep all the state that it can.
const std::vector<std::pair<std::string, Json>>& configurations() {
  static const std::vector<std::pair<std::string, Json>> all = {
      {"sgd", {{"lr", 0.1}, {"momentum", 0.9}, {"weight_decay", 0.1}}},
      {"adam", {{"lr", 0.1}, {"amsgrad", true}}},
      {"adamw", {{"lr", 0.1}, {"weight_decay", 0.1}}},
      {"adagrad", {{"lr", 0.1}, {"lr_decay", 0.1}}},
      {"rmsprop", {{"lr", 0.1}, {"momentum", 0.5}, {"centered", true}}},
  };
  return all;
}

/// One parameter under an optimizer that is stepped by this library or, as the reference, by LibTorch.
struct One {
  at::Tensor parameter;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  std::unique_ptr<Stepper> stepper;

  One(const std::string& kind, const Json& options, at::Tensor start)
      : parameter(std::move(start)),
        optimizer(test::make_optimizer(kind, {{parameter}}, options)),
        stepper(Stepper::make(*optimizer)) {}
};

constexpr int kSteps = 4;
const std::vector<std::int64_t> kImages = {4, 3, 5, 2};

at::Tensor gradient_of_step(at::IntArrayRef shape, int step) {
  return value(shape, 0.5, 0.3 * step).to(at::kFloat);
}

/// Steps `kSteps` times on both sides; `dress` gives the gradient its layout or dtype on ours.
void expect_as_plain(
    const std::function<at::Tensor()>& make, const std::function<at::Tensor(at::Tensor)>& dress,
    const std::function<void(at::Tensor&)>& between = [](at::Tensor&) {}) {
  for (const auto& [kind, options] : configurations()) {
    SCOPED_TRACE(kind);
    One ours(kind, options, make());
    One plain(kind, options, leaf(make().contiguous()));
    for (int step = 0; step < kSteps; ++step) {
      const at::Tensor gradient = gradient_of_step(ours.parameter.sizes(), step);
      ours.parameter.mutable_grad() = dress(gradient);
      plain.parameter.mutable_grad() = dress(gradient).to(at::kFloat).contiguous();
      ours.stepper->step();
      plain.optimizer->step();
      between(ours.parameter);
    }
    EXPECT_TRUE(ours.parameter.allclose(plain.parameter, 1e-4, 1e-6)) << ours.parameter << plain.parameter;
  }
}

at::Tensor same(at::Tensor gradient) {
  return gradient;
}
at::Tensor channels_last(at::Tensor t) {
  return t.contiguous(at::MemoryFormat::ChannelsLast);
}
at::Tensor images() {
  return leaf(value(kImages, 0.8, 1).to(at::kFloat));
}

TEST(Layout, OfTheGradientMayDifferFromTheParameters) {
  expect_as_plain(images, channels_last);
  expect_as_plain([] { return channels_last(images()).detach().set_requires_grad(true); }, same);
  expect_as_plain([] { return leaf(value({4, 6}, 0.8, 1).to(at::kFloat).t()); }, same);
}

TEST(Layout, MayChangeAfterStateExists) {
  expect_as_plain(images, same, [](at::Tensor& p) { p.set_data(channels_last(p.detach())); });
}

TEST(Layout, OfStateThatAPlainStepMadeMayDiffer) {
  for (const auto& [kind, options] : configurations()) {
    SCOPED_TRACE(kind);
    One ours(kind, options, images());
    One plain(kind, options, images());
    for (int step = 0; step < kSteps; ++step) {
      const at::Tensor gradient = channels_last(gradient_of_step(kImages, step));
      ours.parameter.mutable_grad() = gradient;
      plain.parameter.mutable_grad() = gradient.clone();
      if (step == 0)
        ours.optimizer->step();
      else
        ours.stepper->step();
      plain.optimizer->step();
    }
    EXPECT_TRUE(ours.parameter.allclose(plain.parameter, 1e-4, 1e-6));
  }
}

TEST(Layout, WithGapsIsUpdatedWithoutTouchingTheGaps) {
  for (const auto& [kind, options] : configurations()) {
    SCOPED_TRACE(kind);
    const at::Tensor storage = at::ones({6, 8});
    One ours(kind, options, storage.slice(1, 2, 5).detach().set_requires_grad(true));
    One plain(kind, options, leaf(at::ones({6, 3})));
    for (int step = 0; step < kSteps; ++step) {
      for (One* one : {&ours, &plain}) one->parameter.mutable_grad() = gradient_of_step({6, 3}, step);
      ours.stepper->step();
      plain.optimizer->step();
    }
    EXPECT_TRUE(ours.parameter.allclose(plain.parameter, 1e-5, 1e-6));
    EXPECT_TRUE(storage.slice(1, 0, 2).equal(at::ones({6, 2})));
    EXPECT_TRUE(storage.slice(1, 5, 8).equal(at::ones({6, 3})));
  }
}

TEST(Gradient, MayBeOfAnotherDtype) {
  expect_as_plain(images, [](at::Tensor g) { return g.to(at::kBFloat16); });
  expect_as_plain(images, [](at::Tensor g) { return g.to(at::kDouble); });
}

TEST(Gradient, OfHalfPrecisionParametersMovesEveryElement) {
  // Long enough for a kernel's vector loop and its remainder.
  const std::vector<std::int64_t> shape = {83};
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    for (auto [kind, options] : configurations()) {
      SCOPED_TRACE(kind);
      // What half precision can hold: the usual eps is 0 in it, and the centred variance may come out below
      // 0.
      options["eps"] = 1e-3;
      options["centered"] = false;
      One half(kind, options, leaf(value(shape, 0.8, 1).to(dtype)));
      One full(kind, options, leaf(half.parameter.to(at::kFloat)));
      for (int step = 0; step < kSteps; ++step) {
        half.parameter.mutable_grad() = gradient_of_step(shape, step).to(dtype);
        full.parameter.mutable_grad() = half.parameter.grad().to(at::kFloat);
        half.stepper->step();
        full.optimizer->step();
      }
      EXPECT_EQ(half.parameter.scalar_type(), dtype);
      const at::Tensor difference = (half.parameter.to(at::kFloat) - full.parameter).abs().max();
      EXPECT_LT(difference.item<float>(), dtype == at::kHalf ? 0.01 : 0.05);
    }
  }
}

TEST(Gradient, OfAnotherShapeIsRefused) {
  for (const auto& [kind, options] : configurations()) {
    One one(kind, options, leaf(at::ones({2, 3})));
    one.parameter.mutable_grad() = at::ones({3, 2});
    try {
      one.stepper->step();
      FAIL() << kind;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kMismatch);
      EXPECT_THAT(error.what(), HasSubstr("[2, 3]"));
      EXPECT_THAT(error.what(), HasSubstr("[3, 2]"));
    }
    EXPECT_TRUE(one.parameter.equal(at::ones({2, 3})));
  }
}

TEST(Gradient, ThatIsSparseTakesLibTorchsOwnStep) {
  for (const auto& [kind, options] :
       std::vector<std::pair<std::string, Json>>{{"sgd", {{"lr", 0.5}}}, {"adagrad", {{"lr", 0.5}}}}) {
    SCOPED_TRACE(kind);
    const at::Tensor other = leaf(at::ones({2}));
    const at::Tensor rows = leaf(at::ones({3, 2}));
    const auto optimizer = test::make_optimizer(kind, {{other, rows}}, options);
    const auto stepper = Stepper::make(*optimizer);
    other.mutable_grad() = at::ones({2});
    rows.mutable_grad() =
        at::sparse_coo_tensor(at::tensor({1}, at::kLong).unsqueeze(0), at::ones({1, 2}), {3, 2});
    stepper->step();
    const at::Tensor moved = at::ones({3, 2});
    moved[1].fill_(0.5);
    EXPECT_TRUE(rows.allclose(moved)) << rows;
    EXPECT_TRUE(other.allclose(at::ones({2}) * 0.5)) << other;
  }
}

TEST(Gradient, IsNotChangedByAStep) {
  for (const auto& [kind, options] : configurations()) {
    One one(kind, options, images());
    const at::Tensor gradient = gradient_of_step(kImages, 0);
    one.parameter.mutable_grad() = gradient.clone();
    one.stepper->step();
    EXPECT_TRUE(one.parameter.grad().equal(gradient)) << kind;
  }
}

TEST(Gradient, ThatIsMissingLeavesParameterAndStateAlone) {
  for (const auto& [kind, options] : configurations()) {
    SCOPED_TRACE(kind);
    const at::Tensor trained = leaf(at::ones({3}));
    const at::Tensor frozen = at::ones({3});
    const at::Tensor empty = leaf(at::ones({0}));
    const auto optimizer = test::make_optimizer(kind, {{trained, frozen, empty}}, options);
    const auto stepper = Stepper::make(*optimizer);
    const std::size_t states = optimizer->state().size();
    stepper->step();
    EXPECT_TRUE(trained.equal(at::ones({3})));
    EXPECT_EQ(optimizer->state().size(), states);
    trained.mutable_grad() = at::ones({3});
    empty.mutable_grad() = at::ones({0});
    stepper->step();
    EXPECT_TRUE(trained.lt(1).all().item<bool>());
    EXPECT_TRUE(frozen.equal(at::ones({3})));
  }
}

TEST(ZeroGrad, MakesGradientsUndefinedEvenViewsOfABucket) {
  const at::Tensor bucket = at::zeros({6});
  const at::Tensor a = leaf(at::ones({2}));
  const at::Tensor b = leaf(at::ones({4}));
  torch::optim::SGD sgd({a, b}, torch::optim::SGDOptions(0.1));
  a.mutable_grad() = bucket.narrow(0, 0, 2);
  b.mutable_grad() = bucket.narrow(0, 2, 4);
  Stepper::make(sgd)->zero_grad();
  EXPECT_FALSE(a.grad().defined());
  EXPECT_FALSE(b.grad().defined());
}

TEST(Stepper, HoldsNoGradientAfterAStep) {
  for (const auto& [kind, options] : configurations()) {
    One one(kind, options, images());
    const at::Tensor gradient = gradient_of_step(kImages, 0);
    one.parameter.mutable_grad() = gradient;
    one.stepper->step();
    one.stepper->zero_grad();
    EXPECT_EQ(gradient.use_count(), 1) << kind;
  }
}

TEST(Stepper, SeesGroupsThatAreAddedLater) {
  for (const auto& [kind, options] : configurations()) {
    SCOPED_TRACE(kind);
    One one(kind, options, leaf(at::ones({3})));
    one.parameter.mutable_grad() = at::ones({3});
    one.stepper->step();
    const at::Tensor late = leaf(at::ones({3}));
    late.mutable_grad() = at::ones({3});
    one.optimizer->add_param_group(torch::optim::OptimizerParamGroup(std::vector<at::Tensor>{late}));
    one.stepper->step();

    One fresh(kind, options, leaf(at::ones({3})));
    fresh.parameter.mutable_grad() = at::ones({3});
    fresh.stepper->step();
    EXPECT_TRUE(late.equal(fresh.parameter));
  }
}

TEST(Stepper, StartsAfreshWhenTheStateIsCleared) {
  for (const auto& [kind, options] : configurations()) {
    SCOPED_TRACE(kind);
    One one(kind, options, leaf(at::ones({3})));
    for (int round = 0; round < 2; ++round) {
      const at::Tensor expected = leaf(one.parameter);
      one.parameter.mutable_grad() = value({3}, 1, round).to(at::kFloat);
      One fresh(kind, options, expected);
      expected.mutable_grad() = one.parameter.grad().clone();
      one.stepper->step();
      fresh.stepper->step();
      EXPECT_TRUE(one.parameter.equal(expected)) << round;
      one.optimizer->state().clear();
    }
  }
}

TEST(Stepper, LetsAutogradNoticeTheChange) {
  for (const auto& [kind, options] : configurations()) {
    One one(kind, options, leaf(at::ones({3})));
    const at::Tensor loss = one.parameter.square().sum();
    one.parameter.mutable_grad() = at::ones({3});
    one.stepper->step();
    EXPECT_ANY_THROW(loss.backward()) << kind;
  }
}

TEST(Stepper, MakesAutocastForgetTheOldWeights) {
  One one("sgd", {{"lr", 1}}, leaf(at::ones({1, 4})));
  one.parameter.mutable_grad() = at::ones({1, 4});
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::increment_nesting();
  const at::Tensor before = at::linear(at::ones({1, 4}), one.parameter);
  one.stepper->step();
  const at::Tensor after = at::linear(at::ones({1, 4}), one.parameter);
  at::autocast::decrement_nesting();
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_EQ(before.item<float>(), 4);
  EXPECT_EQ(after.item<float>(), 0);
}

TEST(Closure, RunsWithGradientsAndItsLossReturns) {
  const at::NoGradGuard no_grad;
  const at::Tensor w = leaf(at::ones({1}));
  torch::optim::SGD sgd({w}, torch::optim::SGDOptions(0.1));
  const auto stepper = Stepper::make(sgd);
  const at::Tensor loss = stepper->step([&] {
    at::Tensor loss = w.square().sum();
    loss.backward();
    return loss;
  });
  EXPECT_FLOAT_EQ(loss.item<float>(), 1);
  EXPECT_FLOAT_EQ(w.item<float>(), 0.8F);
  EXPECT_FALSE(stepper->step(nullptr).defined());
}

TEST(Closure, DrivesLbfgsToTheMinimum) {
  const at::Tensor w = leaf(at::tensor({-1.2, 1.0}, at::kDouble));
  torch::optim::LBFGS lbfgs(
      {w},
      torch::optim::LBFGSOptions(1).max_iter(100).tolerance_change(1e-15).line_search_fn("strong_wolfe"));
  const auto stepper = Stepper::make(lbfgs);
  EXPECT_EQ(stepper->kind(), "LBFGS");
  EXPECT_EQ(stepper->method(), "own");
  // Rosenbrock's valley, whose minimum is 0 at (1, 1).
  const Stepper::Closure evaluate = [&] {
    stepper->zero_grad();
    at::Tensor loss = 100 * (w[1] - w[0].square()).square() + (1 - w[0]).square();
    loss.backward();
    return loss;
  };
  for (int i = 0; i < 3; ++i) stepper->step(evaluate);
  EXPECT_NEAR(w[0].item<double>(), 1, 1e-5);
  EXPECT_NEAR(w[1].item<double>(), 1, 1e-5);
}

TEST(Closure, IsAskedForByLbfgs) {
  torch::optim::LBFGS lbfgs({leaf(at::ones({1}))});
  try {
    Stepper::make(lbfgs)->step();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kFailedPrecondition);
    EXPECT_THAT(error.what(), HasSubstr("closure"));
  }
}

TEST(Stepper, SaysWhatItDrivesAndHow) {
  const std::vector<std::string> kinds = {"SGD", "Adam", "AdamW", "Adagrad", "RMSprop"};
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    const One one(configurations()[i].first, configurations()[i].second, images());
    EXPECT_EQ(one.stepper->kind(), kinds[i]);
    EXPECT_EQ(one.stepper->method(), kinds[i] == "RMSprop" ? "foreach" : "fused");
  }
}

struct Reversed : torch::optim::SGD {
  using SGD::SGD;
  at::Tensor step(LossClosure) override {
    const at::NoGradGuard no_grad;
    for (auto& p : param_groups_[0].params()) p.add_(p.grad());
    return {};
  }
};

TEST(Stepper, LeavesASubclassItsOwnStep) {
  const at::Tensor w = leaf(at::ones({1}));
  Reversed optimizer({w}, torch::optim::SGDOptions(0.1));
  w.mutable_grad() = at::ones({1});
  const auto stepper = Stepper::make(optimizer);
  stepper->step();
  EXPECT_EQ(w.item<float>(), 2);
  EXPECT_EQ(stepper->method(), "own");
  EXPECT_THAT(std::string(stepper->kind()), HasSubstr("Reversed"));
}

}  // namespace
}  // namespace hasten

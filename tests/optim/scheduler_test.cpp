#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>

#include <ATen/ops/zeros.h>
#include <torch/optim/schedulers/step_lr.h>

#include <hasten/base/error.h>
#include <hasten/optim/schedulers.h>

#include "optim/optimizers.h"

namespace hasten {
namespace {

using namespace hasten::optim;
using test::Json;
using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Rates {
  torch::optim::SGD sgd;

  explicit Rates(const std::vector<double>& rates)
      : sgd(groups(rates.size()), torch::optim::SGDOptions(0.5)) {
    for (std::size_t i = 0; i < rates.size(); ++i) sgd.param_groups()[i].options().set_lr(rates[i]);
  }

  static std::vector<torch::optim::OptimizerParamGroup> groups(std::size_t count) {
    std::vector<torch::optim::OptimizerParamGroup> made;
    for (std::size_t i = 0; i < count; ++i) made.emplace_back(std::vector<at::Tensor>{at::zeros({1})});
    return made;
  }

  [[nodiscard]] double of(std::size_t group) const { return sgd.param_groups()[group].options().get_lr(); }
};

std::unique_ptr<ClosedFormScheduler> make(const std::string& name, const Json& o,
                                          torch::optim::Optimizer& optimizer) {
  const auto whole = [&](const char* key) { return o.at(key).get<std::int64_t>(); };
  const auto real = [&](const char* key) { return o.at(key).get<double>(); };
  if (name == "step")
    return std::make_unique<Step>(optimizer, StepOptions{whole("step_size"), real("gamma")});
  if (name == "multi_step")
    return std::make_unique<MultiStep>(optimizer, MultiStepOptions{o.at("milestones"), real("gamma")});
  if (name == "constant")
    return std::make_unique<Constant>(optimizer, ConstantOptions{real("factor"), whole("total_steps")});
  if (name == "linear")
    return std::make_unique<Linear>(
        optimizer, LinearOptions{real("start_factor"), real("end_factor"), whole("total_steps")});
  if (name == "exponential")
    return std::make_unique<Exponential>(optimizer, ExponentialOptions{real("gamma")});
  if (name == "polynomial")
    return std::make_unique<Polynomial>(optimizer, PolynomialOptions{whole("total_steps"), real("power")});
  if (name == "cosine")
    return std::make_unique<Cosine>(optimizer, CosineOptions{whole("total_steps"), real("minimum")});
  if (name == "cosine_restarts")
    return std::make_unique<CosineRestarts>(
        optimizer, CosineRestartsOptions{whole("first_cycle"), whole("growth"), real("minimum")});
  if (name == "one_cycle")
    return std::make_unique<OneCycle>(
        optimizer, OneCycleOptions{real("maximum"), whole("total_steps"), real("warmup_fraction"),
                                   real("start_divisor"), real("end_divisor")});
  if (name == "cyclic")
    return std::make_unique<Cyclic>(
        optimizer, CyclicOptions{real("minimum"), real("maximum"), whole("steps_up"), o.at("halve_peaks")});
  if (name == "constant_with_warmup")
    return std::make_unique<ConstantWithWarmup>(optimizer, ConstantWithWarmupOptions{whole("warmup_steps")});
  if (name == "linear_with_warmup")
    return std::make_unique<LinearWithWarmup>(
        optimizer,
        LinearWithWarmupOptions{.warmup_steps = whole("warmup_steps"), .total_steps = whole("total_steps")});
  if (name == "cosine_with_warmup")
    return std::make_unique<CosineWithWarmup>(
        optimizer,
        CosineWithWarmupOptions{.warmup_steps = whole("warmup_steps"), .total_steps = whole("total_steps")});
  if (name == "inverse_sqrt")
    return std::make_unique<InverseSqrt>(optimizer,
                                         InverseSqrtOptions{.warmup_steps = whole("warmup_steps")});
  throw std::invalid_argument(name);
}

TEST(Schedulers, EqualPythonsForEveryGroup) {
  for (const Json& run : test::golden("schedulers.json")) {
    SCOPED_TRACE(run.at("scheduler").dump());
    Rates rates({0.1, 0.3});
    const auto scheduler = make(run.at("scheduler"), run.at("options"), rates.sgd);
    for (std::size_t t = 0; t < run.at("rates")[0].size(); ++t) {
      for (const std::size_t group : {0U, 1U})
        EXPECT_NEAR(rates.of(group), run.at("rates")[group][t].get<double>(), 1e-13) << group << " at " << t;
      scheduler->step();
    }
  }
}

TEST(Schedulers, GoOnFromTheirState) {
  for (const Json& run : test::golden("schedulers.json")) {
    SCOPED_TRACE(run.at("scheduler").dump());
    Rates rates({0.1, 0.3});
    const auto scheduler = make(run.at("scheduler"), run.at("options"), rates.sgd);
    for (int i = 0; i < 7; ++i) scheduler->step();
    const SchedulerState state = get_state(*scheduler);
    EXPECT_EQ(state.step, 7);

    Rates later({9, 9});
    const auto resumed = make(run.at("scheduler"), run.at("options"), later.sgd);
    set_state(*resumed, state);
    for (int i = 0; i < 12; ++i) {
      for (const std::size_t group : {0U, 1U}) EXPECT_EQ(later.of(group), rates.of(group));
      scheduler->step();
      resumed->step();
    }
  }
}

TEST(CosineWithWarmup, RisesAndFallsToItsMinimum) {
  Rates rates({1});
  CosineWithWarmup scheduler(rates.sgd, {.warmup_steps = 2, .total_steps = 6});
  std::vector<double> seen;
  for (int t = 0; t <= 6; ++t, scheduler.step()) seen.push_back(rates.of(0));
  EXPECT_THAT(seen, ElementsAre(0, .5, 1, DoubleNear(.853553, 1e-6), DoubleNear(.5, 1e-6),
                                DoubleNear(.146447, 1e-6), DoubleNear(0, 1e-6)));

  Rates floored({2});
  CosineWithWarmup with_floor(floored.sgd, {.total_steps = 4, .minimum_ratio = 0.25});
  EXPECT_EQ(floored.of(0), 2);
  for (int t = 0; t < 4; ++t) with_floor.step();
  EXPECT_DOUBLE_EQ(floored.of(0), 0.5);
}

TEST(LinearWithWarmup, StaysAtItsMinimum) {
  Rates rates({2});
  LinearWithWarmup scheduler(rates.sgd, {.warmup_steps = 1, .total_steps = 3, .minimum_ratio = 0.5});
  std::vector<double> seen;
  for (int t = 0; t <= 5; ++t, scheduler.step()) seen.push_back(rates.of(0));
  EXPECT_THAT(seen, ElementsAre(0, 2, 1.5, 1, 1, 1));
}

TEST(Warmup, MayFillTheWholeRun) {
  Rates rates({1});
  LinearWithWarmup scheduler(rates.sgd, {.warmup_steps = 2, .total_steps = 2});
  std::vector<double> seen;
  for (int t = 0; t <= 3; ++t, scheduler.step()) seen.push_back(rates.of(0));
  EXPECT_THAT(seen, ElementsAre(0, .5, 0, 0));
}

TEST(InverseSqrt, HasATimescaleOfItsOwn) {
  Rates rates({1});
  InverseSqrt scheduler(rates.sgd, {.timescale = 9});
  for (int t = 0; t < 27; ++t) scheduler.step();
  EXPECT_DOUBLE_EQ(rates.of(0), 0.5);
}

TEST(Lambda, ScalesByAFunctionOfTheUsers) {
  Rates rates({0.1, 0.3});
  Lambda scheduler(rates.sgd, [](std::int64_t t) { return 1.0 / static_cast<double>(t + 1); });
  EXPECT_DOUBLE_EQ(rates.of(0), 0.1);
  scheduler.step();
  EXPECT_DOUBLE_EQ(rates.of(0), 0.05);
  EXPECT_DOUBLE_EQ(rates.of(1), 0.15);
}

TEST(Schedulers, TakeInAGroupThatIsAddedLater) {
  Rates rates({1});
  Exponential scheduler(rates.sgd, {.gamma = 0.5});
  scheduler.step();
  rates.sgd.add_param_group(Rates::groups(1)[0]);
  rates.sgd.param_groups()[1].options().set_lr(8);
  scheduler.step();
  EXPECT_DOUBLE_EQ(rates.of(0), 0.25);
  EXPECT_DOUBLE_EQ(rates.of(1), 2);
}

template <class Make>
void expect_refused(Make make, const std::vector<std::string>& words) {
  Rates rates({1});
  try {
    make(rates.sgd);
    ADD_FAILURE() << "made";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    for (const auto& word : words) EXPECT_THAT(error.what(), HasSubstr(word));
  }
  EXPECT_EQ(rates.of(0), 1);
}

TEST(Schedulers, RefuseOptionsThatMakeNoSchedule) {
  using Optimizer = torch::optim::Optimizer;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  expect_refused([](Optimizer& o) { CosineWithWarmup(o, {.warmup_steps = 9, .total_steps = 4}); },
                 {"9", "4"});
  expect_refused([](Optimizer& o) { CosineWithWarmup(o, {}); }, {"total_steps is 0"});
  expect_refused([](Optimizer& o) { LinearWithWarmup(o, {.warmup_steps = -1, .total_steps = 4}); }, {"-1"});
  expect_refused([](Optimizer& o) { ConstantWithWarmup(o, {.warmup_steps = -2}); }, {"-2"});
  expect_refused([](Optimizer& o) { InverseSqrt(o, {.timescale = 0}); }, {"timescale is 0"});
  expect_refused([](Optimizer& o) { Step(o, {}); }, {"step_size is 0"});
  expect_refused([](Optimizer& o) { Polynomial(o, {}); }, {"total_steps is 0"});
  expect_refused([](Optimizer& o) { Cosine(o, {}); }, {"total_steps is 0"});
  expect_refused([](Optimizer& o) { CosineRestarts(o, {}); }, {"first_cycle is 0"});
  expect_refused([](Optimizer& o) { OneCycle(o, {.total_steps = 5}); }, {"maximum is 0"});
  expect_refused([](Optimizer& o) { OneCycle(o, {.maximum = 1, .total_steps = 5, .warmup_fraction = 2}); },
                 {"2"});
  expect_refused([](Optimizer& o) { Cyclic(o, {.minimum = 2, .maximum = 1}); }, {"2", "1"});
  expect_refused([](Optimizer& o) { Linear(o, {.total_steps = 0}); }, {"total_steps is 0"});
  expect_refused([](Optimizer& o) { Constant(o, {.total_steps = -1}); }, {"total_steps is -1"});
  expect_refused([nan](Optimizer& o) { Exponential(o, {.gamma = nan}); }, {"gamma is nan"});
}

TEST(SchedulerState, CoversLibTorchsOwnSchedulers) {
  Rates rates({1});
  torch::optim::StepLR scheduler(rates.sgd, 3, 0.5);
  for (int i = 0; i < 3; ++i) scheduler.step();
  const SchedulerState state = get_state(scheduler);
  EXPECT_EQ(state.step, 3);
  EXPECT_TRUE(state.base_learning_rates.empty());

  Rates later({rates.of(0)});
  torch::optim::StepLR resumed(later.sgd, 3, 0.5);
  set_state(resumed, state);
  for (int i = 0; i < 5; ++i) {
    scheduler.step();
    resumed.step();
    EXPECT_EQ(later.of(0), rates.of(0)) << i;
  }
}

TEST(SchedulerState, OfAnotherOptimizerIsRefused) {
  Rates rates({1, 1});
  Exponential scheduler(rates.sgd, {.gamma = 0.5});
  const auto code_of = [](auto&& call) {
    try {
      call();
    } catch (const Error& error) {
      return error.code();
    }
    return ErrorCode::kSystem;
  };
  EXPECT_EQ(code_of([&] { set_state(scheduler, {.step = 2, .base_learning_rates = {1}}); }),
            ErrorCode::kMismatch);
  EXPECT_EQ(code_of([&] { set_state(scheduler, {.step = -1, .base_learning_rates = {}}); }),
            ErrorCode::kInvalidArgument);
  torch::optim::StepLR other(rates.sgd, 3, 0.5);
  EXPECT_EQ(code_of([&] { set_state(other, {.step = 2, .base_learning_rates = {1, 1}}); }),
            ErrorCode::kMismatch);
  EXPECT_EQ(get_state(scheduler).step, 0);
  EXPECT_EQ(rates.of(0), 1);
}

}  // namespace
}  // namespace hasten

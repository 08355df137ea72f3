#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <optional>

#include <ATen/ops/zeros.h>
#include <torch/optim/schedulers/step_lr.h>

#include <hasten/base/error.h>
#include <hasten/optim/reduce_on_plateau.h>
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
    for (std::size_t i = 0; i < rates.size(); ++i) {
      sgd.param_groups()[i].options().set_lr(rates[i]);
      momentum_of(i) = 0.5;
    }
  }

  static std::vector<torch::optim::OptimizerParamGroup> groups(std::size_t count) {
    std::vector<torch::optim::OptimizerParamGroup> made;
    for (std::size_t i = 0; i < count; ++i) made.emplace_back(std::vector<at::Tensor>{at::zeros({1})});
    return made;
  }

  [[nodiscard]] double& momentum_of(std::size_t group) {
    return static_cast<torch::optim::SGDOptions&>(sgd.param_groups()[group].options()).momentum();
  }
  [[nodiscard]] double of(std::size_t group) const { return sgd.param_groups()[group].options().get_lr(); }
};

/// What the options of a golden file describe, with `Visit` called on this library's options.
template <class Visit>
auto with_options(const std::string& name, const Json& o, Visit&& visit);

Part part_of(const Json& named);

std::vector<Part> parts_of(const Json& list) {
  std::vector<Part> parts;
  for (const Json& named : list) parts.push_back(part_of(named));
  return parts;
}

WarmupStableDecayLine line_of(const std::string& name) {
  if (name == "linear") return WarmupStableDecayLine::kLinear;
  return name == "cosine" ? WarmupStableDecayLine::kCosine : WarmupStableDecayLine::kOneMinusSqrt;
}

template <class Visit>
auto with_options(const std::string& name, const Json& o, Visit&& visit) {
  const auto whole = [&](const char* key) { return o.at(key).get<std::int64_t>(); };
  const auto real = [&](const char* key) { return o.at(key).get<double>(); };
  std::optional<MomentumRange> momentum;
  if (o.contains("momentum")) momentum = MomentumRange{o["momentum"][0], o["momentum"][1]};
  if (name == "step") return visit(StepOptions{whole("step_size"), real("gamma")});
  if (name == "multi_step") return visit(MultiStepOptions{o.at("milestones"), real("gamma")});
  if (name == "constant") return visit(ConstantOptions{real("factor"), whole("total_steps")});
  if (name == "linear")
    return visit(LinearOptions{real("start_factor"), real("end_factor"), whole("total_steps")});
  if (name == "exponential") return visit(ExponentialOptions{real("gamma")});
  if (name == "polynomial") return visit(PolynomialOptions{whole("total_steps"), real("power")});
  if (name == "cosine") return visit(CosineOptions{whole("total_steps"), real("minimum")});
  if (name == "cosine_restarts")
    return visit(CosineRestartsOptions{whole("first_cycle"), whole("growth"), real("minimum")});
  if (name == "one_cycle")
    return visit(OneCycleOptions{.maximum = real("maximum"),
                                 .total_steps = whole("total_steps"),
                                 .warmup_fraction = real("warmup_fraction"),
                                 .start_divisor = real("start_divisor"),
                                 .end_divisor = real("end_divisor"),
                                 .anneal = o.value("linear", false) ? Anneal::kLinear : Anneal::kCosine,
                                 .three_phases = o.value("three_phases", false),
                                 .momentum = momentum});
  if (name == "cyclic") {
    const std::string mode = o.at("mode");
    return visit(CyclicOptions{
        .minimum = real("minimum"),
        .maximum = real("maximum"),
        .steps_up = whole("steps_up"),
        .mode = mode == "triangular"    ? CyclicMode::kTriangular
                : mode == "triangular2" ? CyclicMode::kTriangular2
                                        : CyclicMode::kExpRange,
        .steps_down = o.contains("steps_down") ? std::optional(whole("steps_down")) : std::nullopt,
        .gamma = o.value("gamma", 1.0),
        .momentum = momentum});
  }
  if (name == "constant_with_warmup") return visit(ConstantWithWarmupOptions{whole("warmup_steps")});
  if (name == "linear_with_warmup")
    return visit(LinearWithWarmupOptions{whole("warmup_steps"), whole("total_steps")});
  if (name == "cosine_with_warmup")
    return visit(CosineWithWarmupOptions{whole("warmup_steps"), whole("total_steps"), real("minimum_ratio"),
                                         real("cycles")});
  if (name == "cosine_restarts_with_warmup")
    return visit(
        CosineRestartsWithWarmupOptions{whole("warmup_steps"), whole("total_steps"), whole("cycles")});
  if (name == "polynomial_with_warmup")
    return visit(PolynomialWithWarmupOptions{whole("warmup_steps"), whole("total_steps"),
                                             real("minimum_ratio"), real("power")});
  if (name == "inverse_sqrt") return visit(InverseSqrtOptions{.warmup_steps = whole("warmup_steps")});
  if (name == "warmup_stable_decay")
    return visit(WarmupStableDecayOptions{.warmup_steps = whole("warmup_steps"),
                                          .stable_steps = whole("stable_steps"),
                                          .decay_steps = whole("decay_steps"),
                                          .minimum_ratio = real("minimum_ratio"),
                                          .warmup_line = line_of(o.at("lines")[0]),
                                          .decay_line = line_of(o.at("lines")[1]),
                                          .cycles = real("cycles")});
  if (name == "sequential") return visit(SequentialOptions{parts_of(o.at("parts")), o.at("milestones")});
  if (name == "chained") return visit(ChainedOptions{parts_of(o.at("parts"))});
  throw std::invalid_argument(name);
}

Part part_of(const Json& named) {
  return with_options(named[0], named[1], [](const auto& options) { return Part(options); });
}

std::unique_ptr<ClosedFormScheduler> make(const std::string& name, const Json& o,
                                          torch::optim::Optimizer& optimizer) {
  return with_options(name, o, [&](const auto& options) -> std::unique_ptr<ClosedFormScheduler> {
    return std::make_unique<Scheduler<std::decay_t<decltype(options)>>>(optimizer, options);
  });
}

TEST(Schedulers, EqualPythonsForEveryGroup) {
  for (const Json& run : test::golden("schedulers.json")) {
    SCOPED_TRACE(run.at("scheduler").dump());
    Rates rates({0.1, 0.3});
    const auto scheduler = make(run.at("scheduler"), run.at("options"), rates.sgd);
    for (std::size_t t = 0; t < run.at("rates")[0].size(); ++t) {
      for (const std::size_t group : {0U, 1U}) {
        EXPECT_NEAR(rates.of(group), run.at("rates")[group][t].get<double>(), 1e-13) << group << " at " << t;
        EXPECT_NEAR(rates.momentum_of(group), run.at("momenta")[t].get<double>(), 1e-13) << " at " << t;
      }
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
      for (const std::size_t group : {0U, 1U}) {
        EXPECT_EQ(later.of(group), rates.of(group));
        EXPECT_EQ(later.momentum_of(group), rates.momentum_of(group));
      }
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

TEST(PolynomialWithWarmup, EndsWhereItIsTold) {
  Rates rates({1});
  PolynomialWithWarmup scheduler(rates.sgd,
                                 {.warmup_steps = 2, .total_steps = 6, .minimum_ratio = 0.2, .power = 2});
  std::vector<double> seen;
  for (int t = 0; t <= 7; ++t, scheduler.step()) seen.push_back(rates.of(0));
  // 0.2 + 0.8 (rest / 4)^2
  EXPECT_THAT(seen, ElementsAre(0, .5, 1, DoubleNear(.65, 1e-12), DoubleNear(.4, 1e-12),
                                DoubleNear(.25, 1e-12), DoubleNear(.2, 1e-12), DoubleNear(.2, 1e-12)));
}

TEST(OneCycle, MovesTheFirstBetaOfAdam) {
  torch::optim::AdamW adam({at::zeros({1})}, torch::optim::AdamWOptions(0.1));
  OneCycle scheduler(adam, {.maximum = 1,
                            .total_steps = 11,
                            .warmup_fraction = 6.0 / 11,
                            .anneal = Anneal::kLinear,
                            .momentum = MomentumRange{0.8, 0.9}});
  const auto beta = [&] {
    return std::get<0>(static_cast<torch::optim::AdamWOptions&>(adam.param_groups()[0].options()).betas());
  };
  EXPECT_NEAR(beta(), 0.9, 1e-12);
  for (int i = 0; i < 5; ++i) scheduler.step();  // at the peak
  EXPECT_NEAR(beta(), 0.8, 1e-12);
  for (int i = 0; i < 5; ++i) scheduler.step();
  EXPECT_NEAR(beta(), 0.9, 1e-12);
}

TEST(ReduceOnPlateau, EqualsPythons) {
  for (const Json& run : test::golden("plateaus.json")) {
    const Json& o = run.at("options");
    SCOPED_TRACE(o.dump());
    ReduceOnPlateauOptions options{.patience = o.at("patience")};
    if (o.value("mode", "min") == "max") options.mode = PlateauMode::kMax;
    if (o.value("threshold_mode", "rel") == "abs") options.threshold_mode = PlateauThreshold::kAbsolute;
    test::read_into(o, "factor", options.factor);
    test::read_into(o, "threshold", options.threshold);
    test::read_into(o, "cooldown", options.cooldown);
    test::read_into(o, "eps", options.eps);
    if (o.contains("min_lr"))
      options.minimum = o["min_lr"].is_array() ? o["min_lr"].get<std::vector<double>>()
                                               : std::vector<double>{o["min_lr"].get<double>()};
    Rates rates({0.1, 0.3});
    std::optional<ReduceOnPlateau> plateau(std::in_place, rates.sgd, options);
    for (std::size_t t = 0; t < run.at("metrics").size(); ++t) {
      const Json& metric = run.at("metrics")[t];
      const double before = rates.of(0) + rates.of(1);
      const bool reduced = plateau->step(metric.is_null() ? std::nan("") : metric.get<double>());
      for (const std::size_t group : {0U, 1U})
        EXPECT_NEAR(rates.of(group), run.at("rates")[t][group].get<double>(), 1e-15) << group << " at " << t;
      EXPECT_EQ(reduced, rates.of(0) + rates.of(1) != before);
      // It goes on from its state as if nothing had been.
      const PlateauState state = plateau->state();
      plateau.emplace(rates.sgd, options);
      plateau->load_state(state);
    }
  }
}

TEST(ReduceOnPlateau, RefusesOptionsThatCannotWork) {
  Rates rates({1, 1});
  for (const ReduceOnPlateauOptions& options : {ReduceOnPlateauOptions{.factor = 1},
                                                {.patience = -1},
                                                {.threshold = std::nan("")},
                                                {.cooldown = -1},
                                                {.minimum = {0, 0, 0}}})
    EXPECT_THROW(ReduceOnPlateau(rates.sgd, options), Error);
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
  expect_refused([](Optimizer& o) { Lambda(o, nullptr); }, {"function is empty"});
  expect_refused([](Optimizer& o) { Sequential(o, {}); }, {"0 parts"});
  expect_refused([](Optimizer& o) { Sequential(o, {.parts = {LinearOptions{}, LinearOptions{}}}); },
                 {"2 parts have 0 milestones"});
  expect_refused(
      [](Optimizer& o) {
        Sequential(o, {.parts = {LinearOptions{}, LinearOptions{}, LinearOptions{}}, .milestones = {4, 4}});
      },
      {"milestones do not rise"});
  expect_refused([](Optimizer& o) { Sequential(o, {.parts = {StepOptions{}}}); }, {"step_size is 0"});
  expect_refused([](Optimizer& o) { Chained(o, {}); }, {"no parts"});
  expect_refused([](Optimizer& o) { WarmupStableDecay(o, {.decay_steps = -1}); }, {"decay_steps -1"});
  expect_refused(
      [](Optimizer& o) {
        Cyclic(o, {.maximum = 1, .momentum = MomentumRange{.minimum = 0.9, .maximum = 0.8}});
      },
      {"0.9", "0.8"});
  expect_refused([nan](Optimizer& o) { Exponential(o, {.gamma = nan}); }, {"gamma is nan"});
}

TEST(Schedulers, MoveMomentumOnlyWhereThereIsOne) {
  torch::optim::Adagrad adagrad({at::zeros({1})}, torch::optim::AdagradOptions(0.1));
  EXPECT_THROW(OneCycle(adagrad, {.maximum = 1, .total_steps = 4, .momentum = MomentumRange{}}), Error);
  EXPECT_NO_THROW(OneCycle(adagrad, {.maximum = 1, .total_steps = 4}));
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

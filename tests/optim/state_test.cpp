#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/optim/lbfgs.h>
#include <torch/serialize/archive.h>

#include <hasten/base/error.h>
#include <hasten/device/device.h>
#include <hasten/optim/state.h>
#include <hasten/optim/stepper.h>

#include "optim/optimizers.h"

namespace hasten {
namespace {

using optim::get_state;
using optim::OptimizerState;
using optim::set_state;
using optim::Stepper;
using test::Json;
using test::leaf;
using test::value;
using ::testing::HasSubstr;

/// Three parameters in two groups, named p0 to p2, under one optimizer.
struct Model {
  std::vector<at::Tensor> parameters;
  std::unique_ptr<torch::optim::Optimizer> optimizer;

  Model(const std::string& kind, const Json& options, const Json& second, std::int64_t width = 3) {
    for (int k = 0; k < 3; ++k) parameters.push_back(leaf(value({2, width}, 0.8, k).to(at::kFloat)));
    optimizer = test::make_optimizer(kind, {{parameters[0], parameters[1]}, {parameters[2]}}, options,
                                     {Json::object(), second});
  }

  [[nodiscard]] optim::Names names() const {
    return [this](const at::Tensor& tensor) {
      for (std::size_t k = 0; k < parameters.size(); ++k)
        if (parameters[k].is_same(tensor)) return "p" + std::to_string(k);
      throw std::invalid_argument("not a parameter of the model");
    };
  }

  /// p2 gets no gradient before step 2, so that it has no state at first.
  void train(int from, int to) const {
    const auto stepper = Stepper::make(*optimizer);
    for (int step = from; step < to; ++step) {
      for (int k = 0; k < 3; ++k)
        parameters[k].mutable_grad() = k == 2 && step < 2
                                           ? at::Tensor()
                                           : value(parameters[k].sizes(), 0.5, 0.3 * step + k).to(at::kFloat);
      stepper->step();
    }
  }

  void copy_weights(const Model& other) const {
    for (std::size_t k = 0; k < parameters.size(); ++k)
      parameters[k].detach().copy_(other.parameters[k].detach());
  }
};

/// A copy whose tensors are its own, as a checkpoint has it.
OptimizerState copied(OptimizerState state) {
  for (auto& [name, parameter] : state.parameters)
    for (auto& [key, tensor] : parameter.tensors) tensor = tensor.clone();
  return state;
}

void expect_same(const OptimizerState& a, const OptimizerState& b) {
  EXPECT_EQ(a.kind, b.kind);
  ASSERT_EQ(a.groups.size(), b.groups.size());
  for (std::size_t i = 0; i < a.groups.size(); ++i) {
    EXPECT_EQ(a.groups[i].parameters, b.groups[i].parameters);
    EXPECT_EQ(a.groups[i].options, b.groups[i].options);
  }
  ASSERT_EQ(a.parameters.size(), b.parameters.size());
  for (const auto& [name, parameter] : a.parameters) {
    const auto& other = b.parameters.at(name);
    EXPECT_EQ(parameter.scalars, other.scalars);
    ASSERT_EQ(parameter.tensors.size(), other.tensors.size());
    for (const auto& [key, tensor] : parameter.tensors)
      EXPECT_TRUE(tensor.equal(other.tensors.at(key))) << key;
  }
}

struct Configuration {
  std::string kind;
  Json options;
  Json second;
};

const std::vector<Configuration>& configurations() {
  static const std::vector<Configuration> all = {
      {"sgd", {{"lr", 0.1}, {"momentum", 0.9}, {"nesterov", true}}, {{"lr", 0.03}, {"weight_decay", 0.2}}},
      {"sgd", {{"lr", 0.1}}, {{"lr", 0.03}}},
      {"adam", {{"lr", 0.1}, {"betas", {0.8, 0.9}}}, {{"amsgrad", true}}},
      {"adamw", {{"lr", 0.1}, {"weight_decay", 0.3}}, {{"eps", 1e-3}}},
      {"adagrad", {{"lr", 0.1}, {"lr_decay", 0.1}, {"initial_accumulator_value", 0.3}}, {{"lr", 0.5}}},
      {"rmsprop", {{"lr", 0.01}, {"momentum", 0.5}, {"centered", true}}, {{"alpha", 0.7}}},
  };
  return all;
}

TEST(State, LetsAnotherOptimizerGoOnBitForBit) {
  for (const auto& [kind, options, second] : configurations()) {
    for (const int saved_at : {0, 1, 5}) {
      SCOPED_TRACE(kind + " at " + std::to_string(saved_at));
      const Model first(kind, options, second);
      first.train(0, saved_at);
      const OptimizerState state = copied(get_state(*first.optimizer, first.names()));

      const Model resumed(kind, {{"lr", 0.7}}, Json::object());
      resumed.train(0, 3);
      resumed.copy_weights(first);
      set_state(*resumed.optimizer, resumed.names(), state);
      expect_same(get_state(*resumed.optimizer, resumed.names()), state);
      first.train(saved_at, 9);
      resumed.train(saved_at, 9);
      for (std::size_t k = 0; k < 3; ++k) EXPECT_TRUE(first.parameters[k].equal(resumed.parameters[k])) << k;
    }
  }
}

TEST(State, SpeaksInNames) {
  const Model model("adam", {{"lr", 0.1}}, {{"betas", {0.5, 0.6}}});
  model.train(0, 1);
  const OptimizerState state = get_state(*model.optimizer, model.names());
  EXPECT_EQ(state.kind, "Adam");
  EXPECT_EQ(state.groups[0].parameters, (std::vector<std::string>{"p0", "p1"}));
  EXPECT_EQ(std::get<double>(state.groups[0].options.at("lr")), 0.1);
  EXPECT_EQ(std::get<double>(state.groups[1].options.at("beta2")), 0.6);
  EXPECT_EQ(std::get<bool>(state.groups[1].options.at("amsgrad")), false);
  EXPECT_EQ(state.parameters.size(), 2U);
  EXPECT_EQ(std::get<std::int64_t>(state.parameters.at("p1").scalars.at("step")), 1);
  EXPECT_TRUE(state.parameters.at("p1").tensors.at("exp_avg").defined());
}

TEST(State, RestoresTheLearningRateAndTakesNoMemoryWhenLoadedAgain) {
  const auto one = [](double rate, const at::Tensor& w) {
    auto adam =
        std::make_unique<torch::optim::Adam>(std::vector<at::Tensor>{w}, torch::optim::AdamOptions(rate));
    w.mutable_grad() = at::ones_like(w);
    return adam;
  };
  const optim::Names names = [](const at::Tensor&) { return "w"; };
  const at::Tensor w = leaf(at::ones({1 << 18}));
  const auto saved = one(0.1, w);
  Stepper::make(*saved)->step();
  EXPECT_NEAR(w[0].item<float>(), 0.9, 1e-6);
  const OptimizerState state = copied(get_state(*saved, names));

  const at::Tensor again = leaf(w);
  const auto loaded = one(0.5, again);
  set_state(*loaded, names, state);
  const std::int64_t before = device::backend(at::kCPU).memory(0).used;
  for (int i = 0; i < 1000; ++i) set_state(*loaded, names, state);
  EXPECT_LT(device::backend(at::kCPU).memory(0).used - before, 16 << 20);
  EXPECT_EQ(loaded->param_groups()[0].options().get_lr(), 0.1);
  Stepper::make(*loaded)->step();
  EXPECT_NEAR(again[0].item<float>(), 0.8, 1e-6);
}

TEST(State, DoesNotAliasWhatItWasLoadedFrom) {
  const Model a("adam", {{"lr", 0.1}}, Json::object());
  a.train(0, 3);
  const OptimizerState live = get_state(*a.optimizer, a.names());
  const OptimizerState state = copied(live);
  const Model b("adam", {{"lr", 0.1}}, Json::object());
  set_state(*b.optimizer, b.names(), live);
  b.train(3, 5);
  expect_same(get_state(*a.optimizer, a.names()), state);
}

TEST(State, TakesTheParametersDtype) {
  const Model model("adam", {{"lr", 0.1}}, Json::object());
  model.train(0, 3);
  OptimizerState state = copied(get_state(*model.optimizer, model.names()));
  for (auto& [name, parameter] : state.parameters)
    for (auto& [key, tensor] : parameter.tensors) tensor = tensor.to(at::kDouble);
  set_state(*model.optimizer, model.names(), state);
  const OptimizerState loaded = get_state(*model.optimizer, model.names());
  EXPECT_EQ(loaded.parameters.at("p0").tensors.at("exp_avg").scalar_type(), at::kFloat);
}

TEST(State, FindsParametersThatChangedTheirOrder) {
  const Model model("adam", {{"lr", 0.1}}, Json::object());
  model.train(0, 3);
  OptimizerState state = copied(get_state(*model.optimizer, model.names()));
  std::swap(state.groups[0].parameters[0], state.groups[0].parameters[1]);
  const Model other("adam", {{"lr", 0.1}}, Json::object());
  set_state(*other.optimizer, other.names(), state);
  EXPECT_TRUE(get_state(*other.optimizer, other.names())
                  .parameters.at("p0")
                  .tensors.at("exp_avg")
                  .equal(state.parameters.at("p0").tensors.at("exp_avg")));
}

TEST(State, AcceptsAWholeNumberForARealOne) {
  const Model model("sgd", {{"lr", 0.1}}, Json::object());
  OptimizerState state = get_state(*model.optimizer, model.names());
  state.groups[0].options["lr"] = std::int64_t{2};
  set_state(*model.optimizer, model.names(), state);
  EXPECT_EQ(model.optimizer->param_groups()[0].options().get_lr(), 2);
}

/// Spoils a good state, and expects a refusal that holds `words` and changes nothing.
void expect_refused(const std::function<void(OptimizerState&)>& spoil,
                    const std::vector<std::string>& words) {
  const Model model("adam", {{"lr", 0.1}}, {{"amsgrad", true}});
  model.train(0, 4);
  const OptimizerState before = copied(get_state(*model.optimizer, model.names()));
  OptimizerState state = before;
  // Good values that differ, so that a part written too early shows.
  state.groups[0].options["lr"] = 0.9;
  for (auto& [name, parameter] : state.parameters)
    for (auto& [key, tensor] : parameter.tensors) tensor = tensor + 1;
  spoil(state);
  try {
    set_state(*model.optimizer, model.names(), state);
    ADD_FAILURE() << "accepted: " << words.front();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kMismatch);
    for (const auto& word : words) EXPECT_THAT(error.what(), HasSubstr(word));
  }
  expect_same(get_state(*model.optimizer, model.names()), before);
}

TEST(State, OfAnotherModelIsRefusedAndChangesNothing) {
  using State = OptimizerState;
  expect_refused([](State& s) { s.kind = "SGD"; }, {"SGD", "Adam"});
  expect_refused([](State& s) { s.groups.pop_back(); }, {"1 groups", "2"});
  expect_refused([](State& s) { s.groups[1].parameters[0] = "other"; }, {"'p2'", "group 1"});
  expect_refused([](State& s) { s.groups[0].parameters.pop_back(); }, {"'p1'", "group 0"});
  expect_refused([](State& s) { s.groups[0].parameters.push_back("extra"); }, {"'extra'"});
  expect_refused([](State& s) { s.groups[0].parameters.push_back("p1"); }, {"group 0"});
  expect_refused([](State& s) { s.parameters["ghost"] = s.parameters["p2"]; }, {"'ghost'"});
  expect_refused([](State& s) { s.parameters["p2"].tensors["exp_avg_sq"] = at::zeros({5, 7}); },
                 {"'p2'", "[2, 3]", "[5, 7]", "exp_avg_sq"});
  expect_refused([](State& s) { s.parameters["p2"].tensors["max_exp_avg_sq"] = at::Tensor(); },
                 {"max_exp_avg_sq"});
  expect_refused([](State& s) { s.parameters["p1"].tensors.erase("exp_avg"); }, {"'p1'", "exp_avg"});
  expect_refused([](State& s) { s.parameters["p1"].tensors["velocity"] = at::zeros({2, 3}); },
                 {"'velocity'"});
  expect_refused([](State& s) { s.parameters["p1"].scalars.erase("step"); }, {"'p1'", "step"});
  expect_refused([](State& s) { s.parameters["p1"].scalars["step"] = 2.5; }, {"step", "type"});
  expect_refused([](State& s) { s.groups[1].options.erase("beta1"); }, {"group 1", "beta1"});
  expect_refused([](State& s) { s.groups[1].options["lr"] = std::string("fast"); }, {"group 1", "lr"});
  expect_refused([](State& s) { s.groups[1].options["momentum"] = 0.5; }, {"momentum"});
  expect_refused([](State& s) { s.opaque = "not an archive"; }, {"group 0"});
}

TEST(State, NeedsDistinctNames) {
  const Model model("sgd", {{"lr", 0.1}}, Json::object());
  EXPECT_THROW((void)get_state(*model.optimizer, [](const at::Tensor&) { return "same"; }), Error);
}

/// Rosenbrock's valley under LBFGS.
struct Valley {
  at::Tensor x = leaf(at::tensor({-1.2}, at::kDouble));
  at::Tensor y = leaf(at::tensor({1.0}, at::kDouble));
  torch::optim::LBFGS lbfgs{{x, y}, torch::optim::LBFGSOptions(0.1).max_iter(3)};
  optim::Names names = [this](const at::Tensor& t) { return t.is_same(x) ? "x" : "y"; };

  void step() {
    const auto stepper = Stepper::make(lbfgs);
    stepper->step([&] {
      stepper->zero_grad();
      at::Tensor loss = (100 * (y - x.square()).square() + (1 - x).square()).sum();
      loss.backward();
      return loss;
    });
  }
};

TEST(State, HoldsTheHistoryOfLbfgs) {
  Valley first;
  for (int i = 0; i < 3; ++i) first.step();
  const OptimizerState state = copied(get_state(first.lbfgs, first.names));
  EXPECT_TRUE(state.parameters.at("x").tensors.contains("old_dirs.1"));

  Valley resumed;
  resumed.step();
  resumed.lbfgs.param_groups()[0].options().set_lr(5);
  resumed.x.detach().copy_(first.x.detach());
  resumed.y.detach().copy_(first.y.detach());
  set_state(resumed.lbfgs, resumed.names, state);
  expect_same(get_state(resumed.lbfgs, resumed.names), state);
  for (int i = 0; i < 4; ++i) {
    first.step();
    resumed.step();
    EXPECT_TRUE(first.x.equal(resumed.x) && first.y.equal(resumed.y)) << i;
  }

  OptimizerState damaged = state;
  damaged.parameters.at("x").tensors["old_stps.0"] = at::zeros({7}, at::kDouble);
  EXPECT_THROW(set_state(resumed.lbfgs, resumed.names, damaged), Error);
  damaged = state;
  std::swap(damaged.groups[0].parameters[0], damaged.groups[0].parameters[1]);
  EXPECT_THROW(set_state(resumed.lbfgs, resumed.names, damaged), Error);
}

struct DriftOptions : torch::optim::OptimizerCloneableOptions<DriftOptions> {
  double rate = 0.1;
  double get_lr() const override { return rate; }
  void set_lr(double lr) override { rate = lr; }
};

/// An optimizer of the user's, which moves a little further in each step.
struct Drift : torch::optim::Optimizer {
  explicit Drift(const at::Tensor& w) : Optimizer({w}, std::make_unique<DriftOptions>()) {}
  at::Tensor step(LossClosure) override {
    const double rate = param_groups_[0].options().get_lr();
    param_groups_[0].params()[0].detach().sub_(rate * ++steps);
    return {};
  }
  void save(torch::serialize::OutputArchive& archive) const override {
    archive.write("steps", at::IValue(steps));
  }
  void load(torch::serialize::InputArchive& archive) override {
    at::IValue value;
    archive.read("steps", value);
    steps = value.toInt();
  }
  std::int64_t steps = 0;
};

TEST(State, OfAUsersClassIsWhatItsSaveWrites) {
  const optim::Names names = [](const at::Tensor&) { return "w"; };
  const at::Tensor a = leaf(at::zeros({1}));
  Drift first(a);
  first.step(nullptr);
  first.param_groups()[0].options().set_lr(0.5);
  const OptimizerState state = get_state(first, names);
  EXPECT_FALSE(state.opaque.empty());

  const at::Tensor b = leaf(a);
  Drift resumed(b);
  set_state(resumed, names, state);
  first.step(nullptr);
  resumed.step(nullptr);
  EXPECT_TRUE(a.equal(b));
  EXPECT_EQ(resumed.steps, 2);

  OptimizerState damaged = state;
  damaged.opaque.resize(damaged.opaque.size() / 2);
  EXPECT_THROW(set_state(resumed, names, damaged), Error);
  EXPECT_EQ(resumed.steps, 2);
}

struct Forgetful : Drift {
  using Drift::Drift;
  void save(torch::serialize::OutputArchive&) const override {}
};

TEST(State, OfAUsersClassThatSavesNothingIsRefused) {
  Forgetful optimizer(leaf(at::zeros({1})));
  optimizer.state()[nullptr] = std::make_unique<torch::optim::SGDParamState>();
  try {
    (void)get_state(optimizer, [](const at::Tensor&) { return "w"; });
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
    EXPECT_THAT(error.what(), HasSubstr("Forgetful"));
  }
}

}  // namespace
}  // namespace hasten

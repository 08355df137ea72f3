#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/view_as_real.h>

#include <hasten/optim/stepper.h>

#include "optim/optimizers.h"

namespace hasten {
namespace {

using optim::Stepper;
using test::Json;

void expect_near(const std::vector<double>& found, const std::vector<double>& expected, double relative,
                 const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (std::size_t i = 0; i < found.size(); ++i)
    ASSERT_NEAR(found[i], expected[i], relative * std::max(std::abs(expected[i]), 1e-3)) << what << " " << i;
}

std::vector<double> flat(const at::Tensor& tensor) {
  at::Tensor real = tensor.detach();
  if (real.is_complex()) real = at::view_as_real(real);
  real = real.to(at::kDouble).contiguous();
  return {real.data_ptr<double>(), real.data_ptr<double>() + real.numel()};
}

double clip(const std::vector<at::Tensor>& parameters, double max_norm) {
  double squares = 0;
  for (const at::Tensor& p : parameters) squares += p.grad().square().sum().item<double>();
  const double norm = std::sqrt(squares);
  for (const at::Tensor& p : parameters) p.grad().mul_(std::min(1.0, max_norm / (norm + 1e-6)));
  return norm;
}

/// The network and data of trajectories.json.
struct Training {
  std::vector<at::Tensor> parameters;
  at::Tensor x = test::value({50, 8}, 1, 0.5);
  at::Tensor y = at::arange(50).remainder(3);

  Training() {
    const std::vector<std::vector<std::int64_t>> shapes = {{16, 8}, {16}, {3, 16}, {3}};
    for (std::size_t k = 0; k < shapes.size(); ++k)
      parameters.push_back(
          test::leaf(test::value(shapes[k], 0.3, static_cast<double>(k)).to(at::kFloat).to(at::kDouble)));
  }

  [[nodiscard]] at::Tensor loss(std::int64_t start) const {
    const std::int64_t end = std::min<std::int64_t>(start + 8, 50);
    const at::Tensor hidden = at::relu(at::linear(x.slice(0, start, end), parameters[0], parameters[1]));
    return at::cross_entropy_loss(at::linear(hidden, parameters[2], parameters[3]), y.slice(0, start, end));
  }
};

TEST(Trajectories, EqualPythonsUnderAccumulationAndClipping) {
  for (const Json& run : test::golden("trajectories.json")) {
    SCOPED_TRACE(run.at("optimizer").dump() + " accumulation " + run.at("accumulation_steps").dump() +
                 " clip " + run.at("max_norm").dump());
    const Training training;
    const auto optimizer =
        test::make_optimizer(run.at("optimizer"), {training.parameters}, run.at("options"));
    const auto stepper = Stepper::make(*optimizer);
    const int accumulation = run.at("accumulation_steps");
    const int batches = 7;
    std::vector<double> losses, norms;
    for (int epoch = 0; epoch < 3; ++epoch) {
      for (int batch = 0; batch < batches; ++batch) {
        const int window_start = batch - batch % accumulation;
        const int window = std::min(accumulation, batches - window_start);
        const at::Tensor loss = training.loss(8 * batch);
        (loss / (run.at("divide_by_window") ? window : accumulation)).backward();
        losses.push_back(loss.item<double>());
        if (batch - window_start + 1 < window) continue;
        if (!run.at("max_norm").is_null()) norms.push_back(clip(training.parameters, run.at("max_norm")));
        stepper->step();
        stepper->zero_grad();
      }
    }
    expect_near(losses, run.at("losses"), 1e-10, "loss");
    expect_near(norms, run.at("gradient_norms"), 1e-10, "norm");
    expect_near(flat(training.parameters[3]), run.at("final_fc2_bias"), 1e-10, "bias");
  }
}

enum class Steps { kOurs, kOursFirst, kPlainFirst };

/// Runs one case of groups.json and compares.
void run_groups(const Json& run, Steps steps) {
  const at::ScalarType dtype = run.at("dtype") == "float64"   ? at::kDouble
                               : run.at("dtype") == "float32" ? at::kFloat
                                                              : at::kComplexDouble;
  const std::vector<std::vector<std::int64_t>> shapes = {{5, 3}, {4}, {2, 3, 2, 2}, {9}};
  std::vector<at::Tensor> p;
  for (std::size_t k = 0; k < shapes.size(); ++k)
    p.push_back(test::leaf(test::value(shapes[k], 0.8, static_cast<double>(k), dtype)));
  const auto optimizer = test::make_optimizer(run.at("optimizer"), {{p[0], p[1]}, {p[2], p[3]}},
                                              run.at("options"), {Json::object(), run.at("second_group")});
  const auto stepper = Stepper::make(*optimizer);
  for (int step = 0; step < 20; ++step) {
    if (step == 10)
      for (auto& group : optimizer->param_groups()) group.options().set_lr(group.options().get_lr() * 0.1);
    for (std::size_t k = 0; k < p.size(); ++k) {
      const bool has_gradient = !(k == 1 && step < 5) && !(k == 3 && step % 3 == 2);
      p[k].mutable_grad() = has_gradient
                                ? test::value(shapes[k], 0.5, 0.3 * step + static_cast<double>(k), dtype)
                                : at::Tensor();
    }
    const bool plain = steps != Steps::kOurs && (step % 2 == 0) == (steps == Steps::kPlainFirst);
    if (plain)
      optimizer->step();
    else
      stepper->step();
  }
  const double relative = dtype == at::kFloat ? 2e-5 : 1e-10;
  for (std::size_t k = 0; k < p.size(); ++k)
    expect_near(flat(p[k]), run.at("final").at(k), relative, "parameter " + std::to_string(k));
}

TEST(Groups, EqualPythonsWithOptionsOfTheirOwn) {
  for (const Json& run : test::golden("groups.json")) {
    SCOPED_TRACE(run.at("optimizer").dump() + run.at("options").dump() + run.at("dtype").dump());
    run_groups(run, Steps::kOurs);
  }
}

TEST(Groups, MayTakePlainAndFusedStepsInTurn) {
  for (const Json& run : test::golden("groups.json")) {
    // LibTorch's own step squares complex gradients instead of their parts.
    if (run.at("dtype") == "complex128") continue;
    SCOPED_TRACE(run.at("optimizer").dump() + run.at("options").dump() + run.at("dtype").dump());
    run_groups(run, Steps::kOursFirst);
    run_groups(run, Steps::kPlainFirst);
  }
}

/// Row by row the published drift between the two front ends.
double one_weight(const std::string& name, const Json& options, const std::vector<double>& rates) {
  const at::Tensor w = test::leaf(test::value({1}, 0, 0) + 1);
  const auto optimizer = test::make_optimizer(name, {{w}}, options);
  const auto stepper = Stepper::make(*optimizer);
  for (const double rate : rates) {
    optimizer->param_groups()[0].options().set_lr(rate);
    w.mutable_grad() = test::value({1}, 0, 0) + 1;
    stepper->step();
  }
  return w.item<double>();
}

TEST(Stepper, HasThePythonFormulas) {
  EXPECT_NEAR(one_weight("sgd", {{"lr", 0.1}, {"momentum", 0.9}}, {0.1, 0.01}), 0.881, 1e-12);
  EXPECT_NEAR(one_weight("adam", {{"lr", 0.1}}, {0.1}), 0.9, 1e-7);
  EXPECT_NEAR(one_weight("adam", {{"lr", 0.1}}, {0.1, 0.1}), 0.8, 1e-7);
  EXPECT_NEAR(one_weight("adam", {{"lr", 0.1}}, {0.1, 0.1, 0.1}), 0.7, 1e-7);
  EXPECT_NEAR(one_weight("adamw", {{"lr", 0.1}, {"weight_decay", 0.01}}, {0.1}), 0.899, 1e-7);
}

}  // namespace
}  // namespace hasten

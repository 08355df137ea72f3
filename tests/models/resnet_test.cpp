#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <gtest/gtest.h>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/serialize.h>

#include <hasten/base/error.h>
#include <hasten/base/files.h>
#include <hasten/models/resnet.h>

#include "support/errors.h"

namespace hasten {
namespace {

using test::message_of;

// The formulas are those of tests/golden/models/generate.py, which says what they are.

double uniform(std::uint32_t k, std::uint32_t seed) {
  std::uint32_t h = k * 0x85EBCA6BU + seed * 0x27D4EB2FU + 0x165667B1U;
  h = (h ^ (h >> 15)) * 0x2C1B3C6DU;
  h = (h ^ (h >> 12)) * 0x297A2D39U;
  h ^= h >> 15;
  return static_cast<double>(h >> 8) * 0x1p-24;
}

/// A float64 tensor of `scale` * u + `shift`.
at::Tensor formula(at::IntArrayRef shape, std::uint32_t seed, double scale, double shift) {
  at::Tensor tensor = at::zeros(shape, at::kDouble);
  auto* values = tensor.mutable_data_ptr<double>();
  for (std::int64_t k = 0; k < tensor.numel(); ++k)
    values[k] = scale * uniform(static_cast<std::uint32_t>(k), seed) + shift;
  return tensor;
}

at::Tensor signed_formula(at::IntArrayRef shape, std::uint32_t seed) {
  return formula(shape, seed, 2.0, -1.0);
}

double projection(const at::Tensor& tensor) {
  return (tensor.detach().to(at::kDouble) * signed_formula(tensor.sizes(), 9002)).sum().item<double>();
}

at::Tensor fill(const std::string& name, const at::Tensor& like, std::uint32_t seed) {
  const std::string kind = name.substr(name.rfind('.') + 1);
  if (like.dim() >= 2) {
    const double variance = static_cast<double>(like.size(0)) / static_cast<double>(like.numel());
    return signed_formula(like.sizes(), seed) * std::sqrt(3.0 * variance);
  }
  if (kind == "weight" || kind == "running_var") return formula(like.sizes(), seed, 0.5, 0.75);
  if (kind == "bias" || kind == "running_mean") return signed_formula(like.sizes(), seed) * 0.1;
  return at::ones({}) * static_cast<double>(seed);
}

struct Case {
  std::string name;
  std::function<models::ResNet()> make;
};

void PrintTo(const Case& test_case, std::ostream* out) {
  *out << test_case.name;
}

const nlohmann::ordered_json& golden(const std::string& name) {
  static const auto kGolden =
      nlohmann::ordered_json::parse(files::read(std::string(HASTEN_GOLDEN_DIR) + "/models/resnet.json"));
  return kGolden.at(name);
}

/// Parameters and buffers by name.
std::map<std::string, at::Tensor> state_of(models::ResNet& net) {
  std::map<std::string, at::Tensor> state;
  for (const auto& item : net->named_parameters()) state[item.key()] = item.value();
  for (const auto& item : net->named_buffers()) state[item.key()] = item.value();
  return state;
}

void fill_state(models::ResNet& net, const nlohmann::ordered_json& expected) {
  const c10::NoGradGuard no_grad;
  const auto state = state_of(net);
  std::uint32_t seed = 0;
  for (const auto& [name, shape] : expected.at("state").items()) {
    state.at(name).copy_(fill(name, state.at(name), seed++));
  }
}

void expect_close(const at::Tensor& actual, const nlohmann::ordered_json& expected, double tolerance) {
  const auto values = expected.get<std::vector<double>>();
  const at::Tensor wanted = at::tensor(values, at::kDouble).view_as(actual);
  const double scale = wanted.abs().max().item<double>();
  EXPECT_LT((actual.detach().to(at::kDouble) - wanted).abs().max().item<double>(), tolerance * scale);
}

void expect_close(const std::string& name, double actual, double expected, double tolerance) {
  EXPECT_NEAR(actual, expected, tolerance * std::max(1.0, std::abs(expected))) << name;
}

class ResNetGolden : public testing::TestWithParam<Case> {
 protected:
  ResNetGolden() { at::set_num_threads(1); }

  models::ResNet net_ = GetParam().make();
  const nlohmann::ordered_json& golden_ = golden(GetParam().name);
  at::Tensor images_ = signed_formula(golden_.at("images").get<std::vector<std::int64_t>>(), 9001);
};

TEST_P(ResNetGolden, HasPythonsNamesAndShapesInPythonsOrder) {
  const auto state = state_of(net_);
  EXPECT_EQ(state.size(), golden_.at("state").size());
  std::vector<std::string> parameters;
  std::vector<std::string> buffers;
  for (const auto& [name, shape] : golden_.at("state").items()) {
    ASSERT_TRUE(state.contains(name)) << name;
    EXPECT_EQ(state.at(name).sizes().vec(), shape.get<std::vector<std::int64_t>>()) << name;
    (golden_.at("gradients").contains(name) ? parameters : buffers).push_back(name);
  }
  EXPECT_EQ(net_->named_parameters().keys(), parameters);
  EXPECT_EQ(net_->named_buffers().keys(), buffers);
}

TEST_P(ResNetGolden, StartsFromThePythonWeightsOfTheSameSeed) {
  at::manual_seed(5);
  models::ResNet seeded = GetParam().make();
  const auto state = state_of(seeded);
  for (const auto& [name, value] : golden_.at("seeded").items())
    expect_close(name, projection(state.at(name)), value, 1e-4);
}

TEST_P(ResNetGolden, ComputesPythonsValuesInFloat64) {
  net_->to(at::kDouble);
  fill_state(net_, golden_);
  net_->eval();
  expect_close(net_(images_), golden_.at("eval"), 1e-11);

  net_->train();
  const at::Tensor logits = net_(images_);
  expect_close(logits, golden_.at("train"), 1e-11);
  at::cross_entropy_loss(logits, at::arange(logits.size(0))).backward();
  const auto state = state_of(net_);
  for (const auto& [name, value] : golden_.at("gradients").items())
    expect_close(name, projection(state.at(name).grad()), value, 1e-9);
  for (const auto& [name, value] : golden_.at("buffers").items())
    expect_close(name, projection(state.at(name)), value, 1e-9);
}

TEST_P(ResNetGolden, ComputesPythonsValuesInFloat32InBothMemoryFormats) {
  for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
    models::ResNet net = GetParam().make();
    fill_state(net, golden_);
    for (auto& parameter : net->parameters())
      if (parameter.dim() == 4) parameter.set_data(parameter.contiguous(format));
    const at::Tensor images = images_.to(at::kFloat).contiguous(format);
    net->eval();
    expect_close(net(images), golden_.at("eval"), 1e-5);
    // Batch norm over eight values in the last stage magnifies rounding: Python's own float32 is off by 1e-4
    // here.
    net->train();
    expect_close(net(images), golden_.at("train"), 1e-3);
  }
}

TEST_P(ResNetGolden, TrainsUnderBf16Autocast) {
  fill_state(net_, golden_);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const at::Tensor logits = net_(images_.to(at::kFloat).contiguous(at::MemoryFormat::ChannelsLast));
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  EXPECT_EQ(logits.scalar_type(), at::kBFloat16);
  at::cross_entropy_loss(logits.to(at::kFloat), at::arange(logits.size(0))).backward();
  for (const auto& parameter : net_->named_parameters()) {
    EXPECT_EQ(parameter.value().grad().scalar_type(), at::kFloat) << parameter.key();
    EXPECT_TRUE(parameter.value().grad().isfinite().all().item<bool>()) << parameter.key();
  }
}

TEST_P(ResNetGolden, IsClonedWithItsState) {
  net_->to(at::kDouble);
  fill_state(net_, golden_);
  models::ResNet copy(std::dynamic_pointer_cast<models::ResNetImpl>(net_->clone()));
  for (auto& parameter : net_->parameters()) parameter.detach().zero_();
  copy->eval();
  expect_close(copy(images_), golden_.at("eval"), 1e-11);
}

INSTANTIATE_TEST_SUITE_P(Models, ResNetGolden,
                         testing::Values(Case{"ResNet18", [] { return models::ResNet18(10); }},
                                         Case{"ResNet34", [] { return models::ResNet34(10); }},
                                         Case{"ResNet50", [] { return models::ResNet50(10); }},
                                         Case{"ResNet18 for small images",
                                              [] {
                                                return models::ResNet18(
                                                    {.classes = 10, .in_channels = 1, .small_images = true});
                                              }},
                                         Case{"ResNet20", [] { return models::ResNet20(); }},
                                         Case{"ResNet56", [] { return models::ResNet56(); }}),
                         [](const auto& info) {
                           std::string name = info.param.name;
                           std::ranges::replace(name, ' ', '_');
                           return name;
                         });

std::int64_t parameters_of(models::ResNet net) {
  std::int64_t count = 0;
  for (const auto& parameter : net->parameters()) count += parameter.numel();
  return count;
}

// torchvision's published counts, and those of the usual CIFAR form (the paper says 0.27 and 0.85 million).
TEST(ResNet, HasThePublishedNumberOfParameters) {
  EXPECT_EQ(parameters_of(models::ResNet18()), 11'689'512);
  EXPECT_EQ(parameters_of(models::ResNet34()), 21'797'672);
  EXPECT_EQ(parameters_of(models::ResNet50()), 25'557'032);
  EXPECT_EQ(parameters_of(models::ResNet20()), 269'722);
  EXPECT_EQ(parameters_of(models::ResNet56()), 853'018);
}

TEST(ResNet, NamesTheShapeThatItCannotTake) {
  auto net = models::ResNet20();
  const std::string gray = message_of([&] { net(at::zeros({2, 1, 28, 28})); }, ErrorCode::kMismatch);
  EXPECT_NE(gray.find("[2, 1, 28, 28], expected [N, 3, H, W]"), std::string::npos) << gray;
  const std::string flat = message_of([&] { net(at::zeros({2, 784})); }, ErrorCode::kMismatch);
  EXPECT_NE(flat.find("[2, 784]"), std::string::npos) << flat;
}

TEST(ResNet, RefusesAPlanWithoutLayersOrClasses) {
  message_of([] { models::ResNet net(models::ResNetPlan{}); }, ErrorCode::kInvalidArgument);
  message_of([] { models::ResNet net(models::ResNetPlan{.blocks = {2, 0}}); }, ErrorCode::kInvalidArgument);
  const std::string classes = message_of([] { models::ResNet18(0); }, ErrorCode::kInvalidArgument);
  EXPECT_NE(classes.find("got 64, 0 and 3"), std::string::npos) << classes;
}

TEST(ResNet, IsSavedAndLoadedByLibTorch) {
  auto first = models::ResNet20();
  auto second = models::ResNet20();
  std::stringstream file;
  torch::save(first, file);
  torch::load(second, file);
  const auto expected = state_of(first);
  for (const auto& [name, tensor] : state_of(second)) EXPECT_TRUE(tensor.equal(expected.at(name))) << name;
}

}  // namespace
}  // namespace hasten

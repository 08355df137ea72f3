#pragma once

#include <cstdint>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/sin.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

/// What the tests of this room share: LibTorch's optimizers made from the options in golden files.
namespace hasten::test {

using Json = nlohmann::json;

inline Json golden(const std::string& name) {
  std::ifstream file(std::string(HASTEN_GOLDEN_DIR) + "/optim/" + name);
  return Json::parse(file).at("cases");
}

/// scale * sin(0.7 i + phase) over the flattened index i, in float64.
inline at::Tensor value(at::IntArrayRef shape, double scale, double phase) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return (at::sin(at::arange(count, at::kDouble) * 0.7 + phase) * scale).reshape(shape);
}

/// The same in any dtype; the imaginary part runs a quarter ahead.
inline at::Tensor value(at::IntArrayRef shape, double scale, double phase, at::ScalarType dtype) {
  if (!c10::isComplexType(dtype)) return value(shape, scale, phase).to(dtype);
  return at::complex(value(shape, scale, phase), value(shape, scale, phase + 0.25)).to(dtype);
}

inline at::Tensor leaf(const at::Tensor& tensor) {
  return tensor.clone().detach().set_requires_grad(true);
}

template <class T>
void read_into(const Json& json, const char* name, T& field) {
  if (json.contains(name)) field = json.at(name).get<T>();
}

inline void read_options(const Json& json, torch::optim::SGDOptions& o) {
  read_into(json, "lr", o.lr());
  read_into(json, "momentum", o.momentum());
  read_into(json, "dampening", o.dampening());
  read_into(json, "weight_decay", o.weight_decay());
  read_into(json, "nesterov", o.nesterov());
}

template <class AdamOptions>
void read_adam_options(const Json& json, AdamOptions& o) {
  read_into(json, "lr", o.lr());
  read_into(json, "betas", o.betas());
  read_into(json, "eps", o.eps());
  read_into(json, "weight_decay", o.weight_decay());
  read_into(json, "amsgrad", o.amsgrad());
}
inline void read_options(const Json& json, torch::optim::AdamOptions& o) {
  read_adam_options(json, o);
}
inline void read_options(const Json& json, torch::optim::AdamWOptions& o) {
  read_adam_options(json, o);
}

inline void read_options(const Json& json, torch::optim::AdagradOptions& o) {
  read_into(json, "lr", o.lr());
  read_into(json, "lr_decay", o.lr_decay());
  read_into(json, "weight_decay", o.weight_decay());
  read_into(json, "initial_accumulator_value", o.initial_accumulator_value());
  read_into(json, "eps", o.eps());
}

inline void read_options(const Json& json, torch::optim::RMSpropOptions& o) {
  read_into(json, "lr", o.lr());
  read_into(json, "alpha", o.alpha());
  read_into(json, "eps", o.eps());
  read_into(json, "weight_decay", o.weight_decay());
  read_into(json, "momentum", o.momentum());
  read_into(json, "centered", o.centered());
}

using Groups = std::vector<std::vector<at::Tensor>>;

/// Each group's options are `options` overridden by the group's entry in `overrides`. They are set after
/// construction, since LibTorch takes an option that equals its constructor's default for unset.
template <class Optimizer, class Options>
std::unique_ptr<torch::optim::Optimizer> make_typed(const Groups& groups, const Json& options,
                                                    const std::vector<Json>& overrides) {
  Options defaults(options.at("lr").get<double>());
  read_options(options, defaults);
  std::vector<torch::optim::OptimizerParamGroup> made;
  for (const auto& group : groups) made.emplace_back(group);
  auto optimizer = std::make_unique<Optimizer>(made, defaults);
  for (std::size_t i = 0; i < overrides.size(); ++i)
    read_options(overrides[i], static_cast<Options&>(optimizer->param_groups()[i].options()));
  return optimizer;
}

inline std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& name, const Groups& groups,
                                                               const Json& options,
                                                               const std::vector<Json>& overrides = {}) {
  using namespace torch::optim;
  if (name == "sgd") return make_typed<SGD, SGDOptions>(groups, options, overrides);
  if (name == "adam") return make_typed<Adam, AdamOptions>(groups, options, overrides);
  if (name == "adamw") return make_typed<AdamW, AdamWOptions>(groups, options, overrides);
  if (name == "adagrad") return make_typed<Adagrad, AdagradOptions>(groups, options, overrides);
  if (name == "rmsprop") return make_typed<RMSprop, RMSpropOptions>(groups, options, overrides);
  throw std::invalid_argument(name);
}

}  // namespace hasten::test

#include <torch/nn/module.h>

#include <hasten/params/parameter_set.h>

namespace hasten::params {

ParameterSet from_module(const torch::nn::Module& module) {
  NamedTensors parameters;
  for (const auto& item : module.named_parameters()) parameters.emplace_back(item.key(), item.value());
  NamedTensors buffers;
  for (const auto& item : module.named_buffers()) buffers.emplace_back(item.key(), item.value());
  return {parameters, std::move(buffers)};
}

}  // namespace hasten::params

#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>

#include <hasten/params/parameter_set.h>

namespace hasten::params {
namespace {

/// Whether the module's weight gets a sparse gradient.
bool is_sparse(const torch::nn::Module& module) {
  if (const auto* embedding = module.as<torch::nn::EmbeddingImpl>()) return embedding->options.sparse();
  if (const auto* bag = module.as<torch::nn::EmbeddingBagImpl>()) return bag->options.sparse();
  return false;
}

}  // namespace

ParameterSet from_module(const torch::nn::Module& module) {
  NamedTensors parameters;
  for (const auto& item : module.named_parameters()) parameters.emplace_back(item.key(), item.value());
  NamedTensors buffers;
  for (const auto& item : module.named_buffers()) buffers.emplace_back(item.key(), item.value());
  std::set<std::string> sparse;
  for (const auto& item : module.named_modules("", /*include_self=*/true))
    if (is_sparse(*item.value())) sparse.insert(item.key().empty() ? "weight" : item.key() + ".weight");
  return {parameters, std::move(buffers), sparse};
}

}  // namespace hasten::params

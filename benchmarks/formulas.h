#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

/// Inputs, labels and first weights that the peers' programs make too, bit for bit: peers/common.py states
/// the formulas. Both sides then train the same network on the same data, and must end at the same loss.
namespace benchmark_formulas {

inline constexpr std::uint32_t kInputSeed = 1001;

/// A number in [0, 1) of 24 bits: MurmurHash3's finaliser of an element's position.
inline float uniform(std::uint32_t position, std::uint32_t seed) {
  std::uint32_t h = position + seed * 0x9E3779B9U;
  h ^= h >> 16;
  h *= 0x85EBCA6BU;
  h ^= h >> 13;
  h *= 0xC2B2AE35U;
  h ^= h >> 16;
  return static_cast<float>(h >> 8) * 0x1p-24F;
}

/// Fills a float32 tensor with numbers in [-bound, bound), in order of its elements.
inline void fill(const at::Tensor& tensor, std::uint32_t seed, float bound) {
  at::Tensor values = at::empty(tensor.sizes(), at::kFloat);
  auto* data = values.mutable_data_ptr<float>();
  for (std::int64_t k = 0; k < values.numel(); ++k)
    data[k] = (2.0F * uniform(static_cast<std::uint32_t>(k), seed) - 1.0F) * bound;
  const c10::NoGradGuard no_grad;
  tensor.copy_(values);
}

inline at::Tensor inputs(at::IntArrayRef shape) {
  at::Tensor tensor = at::empty(shape, at::kFloat);
  fill(tensor, kInputSeed, 1.0F);
  return tensor;
}

inline at::Tensor labels(std::int64_t count, std::int64_t classes = 10) {
  return at::arange(count, at::kLong).remainder(classes);
}

/// Weights within sqrt(6 / fan_in), norms 1, biases 0.
inline void init_parameters(torch::nn::Module& model) {
  const c10::NoGradGuard no_grad;
  std::uint32_t ordinal = 0;
  for (const auto& item : model.named_parameters()) {
    const at::Tensor& parameter = item.value();
    if (parameter.dim() >= 2) {
      const auto fan_in = static_cast<double>(parameter.numel() / parameter.size(0));
      fill(parameter, ordinal, static_cast<float>(std::sqrt(6.0 / fan_in)));
    } else {
      parameter.fill_(item.key().ends_with("weight") ? 1.0 : 0.0);
    }
    ++ordinal;
  }
}

/// The sum of the absolute values of all parameters, which tells whether two runs ended alike.
inline double absolute_sum(const torch::nn::Module& model) {
  const c10::NoGradGuard no_grad;
  double sum = 0;
  for (const at::Tensor& parameter : model.parameters())
    sum += parameter.to(at::kDouble).abs().sum().item<double>();
  return sum;
}

}  // namespace benchmark_formulas

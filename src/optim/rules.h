#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <type_traits>

#include <ATen/core/Tensor.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "optim/batch.h"

/// One rule an optimizer: where its state lies, and the call that updates a batch. A rule has
///   Optimizer, Options   LibTorch's classes
///   kOperator            the fused operator that a device must have, or null
///   can_update(...)      false for a dense parameter of floats that the operator gets wrong all the same
///   open(...)            makes LibTorch's state of one parameter where there is none, as LibTorch makes it,
///   counts
///                        its step, points `tensors` at it, and returns what goes into `BatchKey::mark`
///   update(...)          the call
namespace hasten::optim {

using States = ska::flat_hash_map<void*, std::unique_ptr<torch::optim::OptimizerParamState>>;
using StateTensors = std::array<at::Tensor*, kMostStates>;

struct SgdRule {
  using Optimizer = torch::optim::SGD;
  using Options = torch::optim::SGDOptions;
  static constexpr const char* kOperator = "aten::_fused_sgd_";

  /// LibTorch 2.13's kernel for half precision on the CPU leaves most elements as they were.
  static bool can_update(const at::Tensor& parameter) {
    return !parameter.is_cpu() || !c10::isReducedFloatingType(parameter.scalar_type());
  }
  static std::int64_t open(const Options& options, const at::Tensor& parameter, States& states,
                           StateTensors& tensors);
  static void update(const Options& options, Batch& batch);
};

/// Adam and AdamW, which differ in how the weights decay.
template <class OptimizerType, class OptionsType, class State>
struct AdamLikeRule {
  using Optimizer = OptimizerType;
  using Options = OptionsType;
  static constexpr const char* kOperator =
      std::is_same_v<Optimizer, torch::optim::Adam> ? "aten::_fused_adam_" : "aten::_fused_adamw_";

  static bool can_update(const at::Tensor&) { return true; }
  static std::int64_t open(const Options& options, const at::Tensor& parameter, States& states,
                           StateTensors& tensors);
  static void update(const Options& options, Batch& batch);
};
using AdamRule = AdamLikeRule<torch::optim::Adam, torch::optim::AdamOptions, torch::optim::AdamParamState>;
using AdamWRule =
    AdamLikeRule<torch::optim::AdamW, torch::optim::AdamWOptions, torch::optim::AdamWParamState>;

struct AdagradRule {
  using Optimizer = torch::optim::Adagrad;
  using Options = torch::optim::AdagradOptions;
  static constexpr const char* kOperator = "aten::_fused_adagrad_";

  static bool can_update(const at::Tensor&) { return true; }
  static std::int64_t open(const Options& options, const at::Tensor& parameter, States& states,
                           StateTensors& tensors);
  static void update(const Options& options, Batch& batch);
};

struct RmspropRule {
  using Optimizer = torch::optim::RMSprop;
  using Options = torch::optim::RMSpropOptions;
  static constexpr const char* kOperator = nullptr;

  static bool can_update(const at::Tensor&) { return true; }
  static std::int64_t open(const Options& options, const at::Tensor& parameter, States& states,
                           StateTensors& tensors);
  static void update(const Options& options, Batch& batch);
};

}  // namespace hasten::optim

#include "optim/rules.h"

#include <type_traits>
#include <vector>

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcdiv.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sqrt.h>
#include <ATen/ops/_fused_adagrad.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros_like.h>

namespace hasten::optim {

namespace {

template <class State>
State& state_of(States& states, const at::Tensor& parameter) {
  auto& slot = states[parameter.unsafeGetTensorImpl()];
  if (!slot) [[unlikely]]
    slot = std::make_unique<State>();
  return static_cast<State&>(*slot);
}

/// The tensor, zeros like the parameter where it was not made yet.
at::Tensor* zeros_at_first(at::Tensor& tensor, const at::Tensor& parameter) {
  if (!tensor.defined()) [[unlikely]]
    tensor = at::zeros_like(parameter);
  return &tensor;
}

}  // namespace

std::int64_t SgdRule::open(const Options& options, const at::Tensor& parameter, States& states,
                           StateTensors& tensors) {
  if (options.momentum() == 0) return 0;
  at::Tensor& buffer = state_of<torch::optim::SGDParamState>(states, parameter).momentum_buffer();
  // The first step stores the gradient itself as momentum, so what is in a new buffer does not matter.
  const bool first = !buffer.defined();
  if (first) buffer = at::empty_like(parameter);
  tensors[0] = &buffer;
  return first ? 1 : 0;
}

void SgdRule::update(const Options& options, Batch& batch) {
  at::_fused_sgd_(batch.parameters.list(), batch.gradients, batch.states[0].list(), options.weight_decay(),
                  options.momentum(), options.lr(), options.dampening(), options.nesterov(),
                  /*maximize=*/false,
                  /*is_first_step=*/batch.key.mark == 1);
}

template <class Optimizer, class Options, class State>
std::int64_t AdamLikeRule<Optimizer, Options, State>::open(const Options& options,
                                                           const at::Tensor& parameter, States& states,
                                                           StateTensors& tensors) {
  State& state = state_of<State>(states, parameter);
  tensors[0] = zeros_at_first(state.exp_avg(), parameter);
  tensors[1] = zeros_at_first(state.exp_avg_sq(), parameter);
  if (options.amsgrad()) tensors[2] = zeros_at_first(state.max_exp_avg_sq(), parameter);
  return ++state.step();
}

template <class Optimizer, class Options, class State>
void AdamLikeRule<Optimizer, Options, State>::update(const Options& options, Batch& batch) {
  batch.set_steps();
  const auto [beta1, beta2] = options.betas();
  const auto call = [&](auto fused) {
    fused(batch.parameters.list(), batch.gradients, batch.states[0].list(), batch.states[1].list(),
          batch.states[2].list(), batch.steps.list(), options.lr(), beta1, beta2, options.weight_decay(),
          options.eps(), options.amsgrad());
  };
  if constexpr (std::is_same_v<Optimizer, torch::optim::Adam>)
    call([](const auto&... arguments) { at::_fused_adam_(arguments..., /*maximize=*/false); });
  else
    call([](const auto&... arguments) { at::_fused_adamw_(arguments..., /*maximize=*/false); });
}

template struct AdamLikeRule<torch::optim::Adam, torch::optim::AdamOptions, torch::optim::AdamParamState>;
template struct AdamLikeRule<torch::optim::AdamW, torch::optim::AdamWOptions, torch::optim::AdamWParamState>;

std::int64_t AdagradRule::open(const Options& options, const at::Tensor& parameter, States& states,
                               StateTensors& tensors) {
  auto& state = state_of<torch::optim::AdagradParamState>(states, parameter);
  // LibTorch's constructor makes the sums; only parameters that were added later come here.
  if (!state.sum().defined()) state.sum(at::full_like(parameter, options.initial_accumulator_value()));
  tensors[0] = &state.sum();
  return ++state.step();
}

void AdagradRule::update(const Options& options, Batch& batch) {
  batch.set_steps();
  at::_fused_adagrad_(batch.parameters.list(), batch.gradients, batch.states[0].list(), batch.steps.list(),
                      options.lr(), options.lr_decay(), options.weight_decay(), options.eps(),
                      /*maximize=*/false);
}

std::int64_t RmspropRule::open(const Options& options, const at::Tensor& parameter, States& states,
                               StateTensors& tensors) {
  auto& state = state_of<torch::optim::RMSpropParamState>(states, parameter);
  tensors[0] = zeros_at_first(state.square_avg(), parameter);
  if (options.momentum() > 0) tensors[1] = zeros_at_first(state.momentum_buffer(), parameter);
  if (options.centered()) tensors[2] = zeros_at_first(state.grad_avg(), parameter);
  ++state.step();
  return 0;
}

void RmspropRule::update(const Options& options, Batch& batch) {
  const at::TensorList parameters = batch.parameters.list();
  const at::TensorList square_avgs = batch.states[0].list();
  if (options.weight_decay() != 0)
    batch.gradients = at::_foreach_add(batch.gradients, parameters, options.weight_decay());
  const double rest = 1 - options.alpha();
  at::_foreach_mul_(square_avgs, options.alpha());
  at::_foreach_addcmul_(square_avgs, batch.gradients, batch.gradients, rest);

  std::vector<at::Tensor> averages;
  if (options.centered()) {
    const at::TensorList grad_avgs = batch.states[2].list();
    at::_foreach_mul_(grad_avgs, options.alpha());
    at::_foreach_add_(grad_avgs, batch.gradients, rest);
    averages = at::_foreach_addcmul(square_avgs, grad_avgs, grad_avgs, -1);
    at::_foreach_sqrt_(averages);
  } else {
    averages = at::_foreach_sqrt(square_avgs);
  }
  at::_foreach_add_(averages, options.eps());

  if (options.momentum() > 0) {
    const at::TensorList buffers = batch.states[1].list();
    at::_foreach_mul_(buffers, options.momentum());
    at::_foreach_addcdiv_(buffers, batch.gradients, averages);
    at::_foreach_add_(parameters, buffers, -options.lr());
  } else {
    at::_foreach_addcdiv_(parameters, batch.gradients, averages, -options.lr());
  }
}

}  // namespace hasten::optim

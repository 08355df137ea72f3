#pragma once

#include <concepts>
#include <memory>
#include <tuple>
#include <typeinfo>

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

/// The fields of LibTorch's option and state classes, listed once for reading, checking and writing. A
/// visitor is called as `visit(name, field)` for options, and as `visit.scalar(name, field)`,
/// `visit.tensor(name, field, extent, need)` and `visit.list(name, field, extent)` for state.
namespace hasten::optim::fields {

/// The size of a tensor of state.
enum class Extent { kParameter, kAllParameters, kOne };
/// Whether state without this tensor is damaged.
enum class Need { kRequired, kOptional };

template <class Visit>
void options(torch::optim::SGDOptions& o, Visit&& visit) {
  visit("lr", o.lr());
  visit("momentum", o.momentum());
  visit("dampening", o.dampening());
  visit("weight_decay", o.weight_decay());
  visit("nesterov", o.nesterov());
}

template <class Options, class Visit>
  requires std::same_as<Options, torch::optim::AdamOptions> ||
           std::same_as<Options, torch::optim::AdamWOptions>
void options(Options& o, Visit&& visit) {
  visit("lr", o.lr());
  visit("beta1", std::get<0>(o.betas()));
  visit("beta2", std::get<1>(o.betas()));
  visit("eps", o.eps());
  visit("weight_decay", o.weight_decay());
  visit("amsgrad", o.amsgrad());
}

template <class Visit>
void options(torch::optim::AdagradOptions& o, Visit&& visit) {
  visit("lr", o.lr());
  visit("lr_decay", o.lr_decay());
  visit("weight_decay", o.weight_decay());
  visit("initial_accumulator_value", o.initial_accumulator_value());
  visit("eps", o.eps());
}

template <class Visit>
void options(torch::optim::RMSpropOptions& o, Visit&& visit) {
  visit("lr", o.lr());
  visit("alpha", o.alpha());
  visit("eps", o.eps());
  visit("weight_decay", o.weight_decay());
  visit("momentum", o.momentum());
  visit("centered", o.centered());
}

template <class Visit>
void options(torch::optim::LBFGSOptions& o, Visit&& visit) {
  visit("lr", o.lr());
  visit("max_iter", o.max_iter());
  visit("max_eval", o.max_eval());
  visit("tolerance_grad", o.tolerance_grad());
  visit("tolerance_change", o.tolerance_change());
  visit("history_size", o.history_size());
  visit("line_search_fn", o.line_search_fn());
}

template <class Visit>
void state(torch::optim::SGDParamState& s, Visit&& visit) {
  visit.tensor("momentum_buffer", s.momentum_buffer(), Extent::kParameter, Need::kOptional);
}

template <class State, class Visit>
  requires std::same_as<State, torch::optim::AdamParamState> ||
           std::same_as<State, torch::optim::AdamWParamState>
void state(State& s, Visit&& visit) {
  visit.scalar("step", s.step());
  visit.tensor("exp_avg", s.exp_avg(), Extent::kParameter, Need::kRequired);
  visit.tensor("exp_avg_sq", s.exp_avg_sq(), Extent::kParameter, Need::kRequired);
  visit.tensor("max_exp_avg_sq", s.max_exp_avg_sq(), Extent::kParameter, Need::kOptional);
}

template <class Visit>
void state(torch::optim::AdagradParamState& s, Visit&& visit) {
  visit.scalar("step", s.step());
  visit.tensor("sum", s.sum(), Extent::kParameter, Need::kRequired);
}

template <class Visit>
void state(torch::optim::RMSpropParamState& s, Visit&& visit) {
  visit.scalar("step", s.step());
  visit.tensor("square_avg", s.square_avg(), Extent::kParameter, Need::kRequired);
  visit.tensor("momentum_buffer", s.momentum_buffer(), Extent::kParameter, Need::kOptional);
  visit.tensor("grad_avg", s.grad_avg(), Extent::kParameter, Need::kOptional);
}

/// `al` is left out: each step computes it anew.
template <class Visit>
void state(torch::optim::LBFGSParamState& s, Visit&& visit) {
  visit.scalar("func_evals", s.func_evals());
  visit.scalar("n_iter", s.n_iter());
  visit.scalar("t", s.t());
  visit.scalar("prev_loss", s.prev_loss());
  visit.tensor("d", s.d(), Extent::kAllParameters, Need::kOptional);
  visit.tensor("H_diag", s.H_diag(), Extent::kOne, Need::kOptional);
  visit.tensor("prev_flat_grad", s.prev_flat_grad(), Extent::kAllParameters, Need::kOptional);
  visit.list("old_dirs", s.old_dirs(), Extent::kAllParameters);
  visit.list("old_stps", s.old_stps(), Extent::kAllParameters);
  visit.list("ro", s.ro(), Extent::kOne);
}

/// The option and state classes that go together.
template <class OptionsType, class StateType>
struct Family {
  using Options = OptionsType;
  using State = StateType;

  /// Whether the optimizer keeps exactly these, so that their fields are all there is.
  [[nodiscard]] static bool owns(torch::optim::Optimizer& optimizer) {
    for (const auto& group : optimizer.param_groups()) {
      const torch::optim::OptimizerOptions& options = group.options();
      if (typeid(options) != typeid(Options)) return false;
    }
    for (const auto& [key, pointer] : optimizer.state()) {
      const torch::optim::OptimizerParamState& state = *pointer;
      if (typeid(state) != typeid(State)) return false;
    }
    return !optimizer.param_groups().empty();
  }
};

/// Calls `use.template operator()<Family>()` for the family that the optimizer keeps; false when there is
/// none.
template <class Use>
bool with_family(torch::optim::Optimizer& optimizer, Use&& use) {
  const auto attempt = [&]<class F>(const F*) {
    if (!F::owns(optimizer)) return false;
    use.template operator()<F>();
    return true;
  };
  const auto any = [&]<class... Families>(const std::tuple<Families...>*) {
    return (attempt(static_cast<const Families*>(nullptr)) || ...);
  };
  using All = std::tuple<Family<torch::optim::SGDOptions, torch::optim::SGDParamState>,
                         Family<torch::optim::AdamOptions, torch::optim::AdamParamState>,
                         Family<torch::optim::AdamWOptions, torch::optim::AdamWParamState>,
                         Family<torch::optim::AdagradOptions, torch::optim::AdagradParamState>,
                         Family<torch::optim::RMSpropOptions, torch::optim::RMSpropParamState>,
                         Family<torch::optim::LBFGSOptions, torch::optim::LBFGSParamState>>;
  return any(static_cast<const All*>(nullptr));
}

}  // namespace hasten::optim::fields

#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/optimizer.h>

#include <hasten/optim/stepper.h>
#include <hasten/precision/autocast.h>

#include "optim/batch.h"
#include "optim/rules.h"

namespace hasten::optim {

/// The gradient of a parameter, without the questions that `Tensor::grad` asks of tensors that are no leaf.
[[nodiscard]] inline const at::Tensor& gradient_of(const at::Tensor& parameter) {
  return parameter.unsafeGetTensorImpl()->grad();
}

/// Whether a kernel that knows dense floats only can update the parameter.
[[nodiscard]] bool can_batch(const at::Tensor& parameter, const at::Tensor& gradient);

/// Whether the operator has a kernel of its own for the device.
[[nodiscard]] bool has_kernel(const char* operator_name, const at::Device& device);

/// Throws unless the gradient has the parameter's shape.
void check_shape(const at::Tensor& parameter, const at::Tensor& gradient, std::size_t group,
                 std::size_t index);

/// Steps an optimizer by one call of its rule for each group of parameters alike. The lists are gathered anew
/// in each step, since groups, state and gradients belong to the user; that costs about 40 ns a parameter.
template <class Rule>
class BatchedStepper final : public Stepper {
 public:
  explicit BatchedStepper(torch::optim::Optimizer& optimizer) : Stepper(optimizer) {}

  using Stepper::step;

  void step() override {
    if (batchable()) {
      const at::NoGradGuard no_grad;
      gather();
      for (Batch& batch : batches_) {
        Rule::update(options_of(batch.key.group), batch);
        batch.gradients.clear();
      }
    } else {
      optimizer_.step();
    }
    precision::clear_cast_cache();  // autocast holds low-precision copies of the parameters
  }

  [[nodiscard]] std::string_view method() const noexcept override {
    return Rule::kOperator ? "fused" : "foreach";
  }

 private:
  using Options = typename Rule::Options;

  [[nodiscard]] const Options& options_of(std::size_t group) const {
    return static_cast<const Options&>(optimizer_.param_groups()[group].options());
  }

  /// Looks at everything before anything changes.
  [[nodiscard]] bool batchable() {
    const auto& groups = optimizer_.param_groups();
    for (std::size_t group = 0; group < groups.size(); ++group) {
      const auto& parameters = groups[group].params();
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        const at::Tensor& parameter = parameters[i];
        if (!parameter.defined()) continue;
        const at::Tensor& gradient = gradient_of(parameter);
        if (!gradient.defined()) continue;
        check_shape(parameter, gradient, group, i);
        if (!can_batch(parameter, gradient) || !Rule::can_update(parameter) ||
            !device_serves(parameter.device()))
          return false;
      }
    }
    return true;
  }

  [[nodiscard]] bool device_serves(const at::Device& device) {
    if (device != known_device_) {
      if (Rule::kOperator && !has_kernel(Rule::kOperator, device)) return false;
      known_device_ = device;
    }
    return true;
  }

  void gather() {
    used_ = 0;
    auto& groups = optimizer_.param_groups();
    for (std::size_t group = 0; group < groups.size(); ++group) {
      first_of_group_ = used_;
      for (const at::Tensor& parameter : groups[group].params())
        if (parameter.defined() && gradient_of(parameter).defined()) add(group, parameter);
    }
    batches_.resize(used_);
    for (Batch& batch : batches_) batch.trim();
  }

  void add(std::size_t group, const at::Tensor& parameter) {
    StateTensors states{};
    const std::int64_t mark = Rule::open(options_of(group), parameter, optimizer_.state(), states);
    const at::ScalarType dtype = parameter.scalar_type();
    Batch& batch = batch_for({.group = group, .device = parameter.device(), .dtype = dtype, .mark = mark});
    at::Tensor gradient = matched(gradient_of(parameter), parameter);
    for (at::Tensor* state : states)
      if (state) keep_matched(*state, parameter);
    if (c10::isComplexType(dtype)) [[unlikely]] {
      batch.parameters.add(as_real(parameter));
      batch.gradients.push_back(as_real(gradient));
      for (std::size_t k = 0; k < states.size(); ++k)
        if (states[k]) batch.states[k].add(as_real(*states[k]));
    } else {
      batch.parameters.add(parameter);
      batch.gradients.push_back(std::move(gradient));
      for (std::size_t k = 0; k < states.size(); ++k)
        if (states[k]) batch.states[k].add(*states[k]);
    }
    // The fused operators do not tell autograd that they change their lists.
    parameter.unsafeGetTensorImpl()->bump_version();
  }

  static void keep_matched(at::Tensor& state, const at::Tensor& parameter) {
    at::Tensor fitting = matched(state, parameter);
    if (!fitting.is_same(state)) state = std::move(fitting);
  }

  [[nodiscard]] Batch& batch_for(const BatchKey& key) {
    for (std::size_t i = used_; i > first_of_group_; --i)
      if (batches_[i - 1].key == key) return batches_[i - 1];
    if (used_ == batches_.size()) batches_.emplace_back();
    batches_[used_].reset(key);
    return batches_[used_++];
  }

  std::vector<Batch> batches_;
  std::size_t used_ = 0;
  std::size_t first_of_group_ = 0;
  std::optional<at::Device> known_device_;
};

}  // namespace hasten::optim

#include <typeinfo>

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/TensorOptions.h>
#include <torch/optim/lbfgs.h>

#include <hasten/base/error.h>
#include <hasten/optim/stepper.h>
#include <hasten/precision/autocast.h>

#include "optim/batched_stepper.h"
#include "optim/kind.h"
#include "optim/master_stepper.h"

namespace hasten::optim {

bool can_batch(const at::Tensor& parameter, const at::Tensor& gradient) {
  if (parameter.layout() != at::kStrided || gradient.layout() != at::kStrided) return false;
  switch (parameter.scalar_type()) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
    case at::kComplexFloat:
    case at::kComplexDouble:
      break;
    default:
      return false;
  }
  return parameter.is_non_overlapping_and_dense() && !parameter.is_conj() && !parameter.is_neg();
}

bool has_kernel(const char* operator_name, const at::Device& device) {
  const auto key = c10::computeDispatchKey(at::kFloat, at::kStrided, device);
  return c10::Dispatcher::singleton().findSchemaOrThrow(operator_name, "").hasKernelForDispatchKey(key);
}

void check_shape(const at::Tensor& parameter, const at::Tensor& gradient, std::size_t group,
                 std::size_t index) {
  require(gradient.sizes() == parameter.sizes(), ErrorCode::kMismatch, "optimizer.step", "parameter ", index,
          " of group ", group, " has shape ", parameter.sizes(), " but its gradient has ", gradient.sizes(),
          ". Assign a gradient of the parameter's shape.");
}

namespace {

/// An optimizer that steps as itself.
class OwnStepper final : public Stepper {
 public:
  explicit OwnStepper(torch::optim::Optimizer& optimizer) : Stepper(optimizer) {}

  void step() override { (void)step(nullptr); }

  at::Tensor step(const Closure& closure) override {
    require(closure || !dynamic_cast<torch::optim::LBFGS*>(&optimizer_), ErrorCode::kFailedPrecondition,
            "optimizer.step",
            "LBFGS evaluates the loss several times a step and was given no closure. Call "
            "optimizer.step(closure) with a function that computes the loss, runs backward and returns the "
            "loss.");
    at::Tensor loss = optimizer_.step(closure);
    precision::clear_cast_cache();
    return loss;
  }

  [[nodiscard]] std::string_view method() const noexcept override { return "own"; }
};

/// A stepper by one of the rules if the optimizer is of its very class: a subclass may step otherwise.
template <class... Rules>
std::unique_ptr<Stepper> make_batched(torch::optim::Optimizer& optimizer) {
  std::unique_ptr<Stepper> stepper;
  const auto try_rule = [&]<class Rule>(const Rule*) {
    if (typeid(optimizer) == typeid(typename Rule::Optimizer))
      stepper = std::make_unique<BatchedStepper<Rule>>(optimizer);
  };
  (try_rule(static_cast<const Rules*>(nullptr)), ...);
  return stepper;
}

}  // namespace

Stepper::Stepper(torch::optim::Optimizer& optimizer) : optimizer_(optimizer), kind_(kind_of(optimizer)) {}

std::unique_ptr<Stepper> Stepper::make(torch::optim::Optimizer& optimizer, bool fp32_master_weights) {
  auto stepper = make_batched<SgdRule, AdamRule, AdamWRule, AdagradRule, RmspropRule>(optimizer);
  if (!stepper) stepper = std::make_unique<OwnStepper>(optimizer);
  return fp32_master_weights ? make_master_stepper(optimizer, std::move(stepper)) : std::move(stepper);
}

at::Tensor Stepper::step(const Closure& closure) {
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode enabled(true);
    loss = closure();
  }
  step();
  return loss;
}

void Stepper::zero_grad() {
  for (auto& group : optimizer_.param_groups())
    for (at::Tensor& parameter : group.params())
      if (parameter.defined() && gradient_of(parameter).defined()) parameter.mutable_grad().reset();
}

}  // namespace hasten::optim

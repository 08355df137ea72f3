#include "optim/master_stepper.h"

#include <unordered_map>

#include <ATen/core/grad_mode.h>
#include <torch/optim/lbfgs.h>

#include <hasten/base/error.h>
#include <hasten/params/parameter_set.h>

namespace hasten::optim {
namespace {

bool wants_master(const at::Tensor& parameter) {
  return parameter.defined() && parameter.layout() == at::kStrided &&
         (parameter.scalar_type() == at::kBFloat16 || parameter.scalar_type() == at::kHalf);
}

class MasterStepper final : public Stepper {
 public:
  MasterStepper(torch::optim::Optimizer& optimizer, std::unique_ptr<Stepper> inner)
      : Stepper(optimizer), inner_(std::move(inner)) {}

  void step() override {
    const Loan loan(*this);
    inner_->step();
  }

  at::Tensor step(const Closure& closure) override {
    if (!closure || !has_half()) return inner_->step(closure);
    require(dynamic_cast<torch::optim::LBFGS*>(&optimizer_) == nullptr, ErrorCode::kUnavailable,
            "optimizer.step",
            "LBFGS evaluates the loss between its updates and cannot work on fp32 copies of parameters in "
            "half precision. Build the model in fp32, or switch fp32_master_weights off.");
    return Stepper::step(closure);
  }

  [[nodiscard]] MasterWeights master_weights() const override {
    MasterWeights all;
    for (const auto& [impl, entry] : masters_)
      if (entry.in_step()) all.emplace_back(entry.parameter, entry.master);
    return all;
  }

  void set_master_weight(const at::Tensor& parameter, const at::Tensor& weight) override {
    if (!wants_master(parameter)) return;
    const at::NoGradGuard no_grad;
    Entry& entry = entry_of(parameter);
    entry.master.copy_(weight);
    entry.version = parameter._version();
  }

  [[nodiscard]] std::string_view method() const noexcept override { return inner_->method(); }

 private:
  struct Entry {
    at::Tensor parameter;
    at::Tensor master;
    std::uint32_t version = 0;  // the parameter's, when the copy was in step with it

    [[nodiscard]] bool in_step() const { return parameter._version() == version; }
  };

  [[nodiscard]] bool has_half() const {
    for (const auto& group : optimizer_.param_groups())
      for (const at::Tensor& parameter : group.params())
        if (wants_master(parameter)) return true;
    return false;
  }

  Entry& entry_of(const at::Tensor& parameter) {
    const auto [found, is_new] = masters_.try_emplace(parameter.unsafeGetTensorImpl());
    Entry& entry = found->second;
    const auto renew = [&] {
      entry = {parameter, parameter.detach().to(at::kFloat),
               static_cast<std::uint32_t>(parameter._version())};
    };
    if (is_new || entry.master.sizes() != parameter.sizes() || entry.master.device() != parameter.device()) {
      renew();
    } else if (!entry.in_step()) {
      // Written to, though perhaps with what it held.
      if (!entry.master.to(parameter.scalar_type()).equal(parameter.detach())) renew();
      entry.version = parameter._version();
    }
    return entry;
  }

  /// The optimizer's parameters are their fp32 copies while it lives.
  class Loan {
   public:
    explicit Loan(MasterStepper& owner) {
      const at::NoGradGuard no_grad;
      for (const auto& group : owner.optimizer_.param_groups())
        for (const at::Tensor& parameter : group.params()) {
          if (!wants_master(parameter) || !parameter.grad().defined()) continue;
          Entry& entry = owner.entry_of(parameter);
          lent_.push_back({&entry, parameter.variable_data(), parameter.grad()});
          params::lend_contents(parameter, entry.master);
          parameter.mutable_grad() = lent_.back().gradient.to(at::kFloat);
        }
    }

    ~Loan() {
      const at::NoGradGuard no_grad;
      for (Lent& lent : lent_) {
        const at::Tensor& parameter = lent.entry->parameter;
        lent.half.copy_(lent.entry->master);
        params::lend_contents(parameter, lent.half);
        parameter.mutable_grad() = lent.gradient;
        parameter.unsafeGetTensorImpl()->bump_version();
        lent.entry->version = parameter._version();
      }
    }
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;

   private:
    struct Lent {
      Entry* entry;
      at::Tensor half;
      at::Tensor gradient;
    };
    std::vector<Lent> lent_;
  };

  std::unique_ptr<Stepper> inner_;
  std::unordered_map<const at::TensorImpl*, Entry> masters_;  // whose entries stay where they are
};

}  // namespace

std::unique_ptr<Stepper> make_master_stepper(torch::optim::Optimizer& optimizer,
                                             std::unique_ptr<Stepper> inner) {
  return std::make_unique<MasterStepper>(optimizer, std::move(inner));
}

}  // namespace hasten::optim

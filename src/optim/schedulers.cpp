#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include <torch/optim/optimizer.h>

#include <hasten/base/error.h>
#include <hasten/optim/schedulers.h>

#include "optim/step_count.h"

namespace hasten::optim {

namespace {

using Count = std::int64_t;
using Formula = ClosedFormScheduler::Formula;

std::vector<double> current_rates(const torch::optim::Optimizer& optimizer) {
  std::vector<double> rates;
  rates.reserve(optimizer.param_groups().size());
  for (const auto& group : optimizer.param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

void require_positive(Count value, const char* schedule, const char* option) {
  require(value > 0, ErrorCode::kInvalidArgument, schedule, option, " is ", value,
          ". Set it to 1 or more updates.");
}

void require_finite(double value, const char* schedule, const char* option) {
  require(std::isfinite(value), ErrorCode::kInvalidArgument, schedule, option, " is ", value,
          ". Set it to a finite number.");
}

void require_warmup(Count warmup, const char* schedule) {
  require(warmup >= 0, ErrorCode::kInvalidArgument, schedule, "warmup_steps is ", warmup,
          ". Set it to 0 or more updates.");
}

void require_span(Count warmup, Count total, const char* schedule) {
  require_warmup(warmup, schedule);
  require_positive(total, schedule, "total_steps");
  require(total >= warmup, ErrorCode::kInvalidArgument, schedule, "total_steps is ", total,
          " but the warm-up alone takes ", warmup, ". total_steps counts the warm-up too: raise it.");
}

double ratio(Count part, Count whole) {
  return static_cast<double>(part) / static_cast<double>(whole);
}

/// From 1 at p = 0 to 0 at p = 1 along half a cosine wave.
double half_wave(double p) {
  return 0.5 * (1 + std::cos(std::numbers::pi * p));
}

/// The rise that the schedules with warm-up share; `after` gives the factor from warmup_steps on.
template <class After>
Formula with_warmup(Count warmup, After after) {
  return [=](double base, Count t) { return base * (t < warmup ? ratio(t, warmup) : after(t)); };
}

Formula step_formula(const StepOptions& o) {
  require_positive(o.step_size, "Step", "step_size");
  require_finite(o.gamma, "Step", "gamma");
  return [o](double base, Count t) { return base * std::pow(o.gamma, t / o.step_size); };
}

Formula multi_step_formula(MultiStepOptions o) {
  require_finite(o.gamma, "MultiStep", "gamma");
  std::sort(o.milestones.begin(), o.milestones.end());
  return [o](double base, Count t) {
    const auto passed = std::upper_bound(o.milestones.begin(), o.milestones.end(), t) - o.milestones.begin();
    return base * std::pow(o.gamma, passed);
  };
}

Formula exponential_formula(const ExponentialOptions& o) {
  require_finite(o.gamma, "Exponential", "gamma");
  return [o](double base, Count t) { return base * std::pow(o.gamma, t); };
}

Formula constant_formula(const ConstantOptions& o) {
  require_finite(o.factor, "Constant", "factor");
  require(o.total_steps >= 0, ErrorCode::kInvalidArgument, "Constant", "total_steps is ", o.total_steps,
          ". Set it to 0 or more updates.");
  return [o](double base, Count t) { return t < o.total_steps ? base * o.factor : base; };
}

Formula linear_formula(const LinearOptions& o) {
  require_finite(o.start_factor, "Linear", "start_factor");
  require_finite(o.end_factor, "Linear", "end_factor");
  require_positive(o.total_steps, "Linear", "total_steps");
  return [o](double base, Count t) {
    const double done = ratio(std::min(t, o.total_steps), o.total_steps);
    return base * (o.start_factor + (o.end_factor - o.start_factor) * done);
  };
}

Formula polynomial_formula(const PolynomialOptions& o) {
  require_positive(o.total_steps, "Polynomial", "total_steps");
  require_finite(o.power, "Polynomial", "power");
  return [o](double base, Count t) {
    return base * std::pow(1 - ratio(std::min(t, o.total_steps), o.total_steps), o.power);
  };
}

Formula cosine_formula(const CosineOptions& o) {
  require_positive(o.total_steps, "Cosine", "total_steps");
  require_finite(o.minimum, "Cosine", "minimum");
  return [o](double base, Count t) {
    return o.minimum + (base - o.minimum) * half_wave(ratio(t, o.total_steps));
  };
}

Formula cosine_restarts_formula(const CosineRestartsOptions& o) {
  require_positive(o.first_cycle, "CosineRestarts", "first_cycle");
  require_positive(o.growth, "CosineRestarts", "growth");
  require_finite(o.minimum, "CosineRestarts", "minimum");
  return [o](double base, Count t) {
    Count length = o.first_cycle;
    if (o.growth == 1) t %= length;
    for (; t >= length; length *= o.growth) t -= length;
    return o.minimum + (base - o.minimum) * half_wave(ratio(t, length));
  };
}

Formula one_cycle_formula(const OneCycleOptions& o) {
  require_positive(o.total_steps, "OneCycle", "total_steps");
  require(o.maximum > 0 && std::isfinite(o.maximum), ErrorCode::kInvalidArgument, "OneCycle", "maximum is ",
          o.maximum, ". Set it to the highest learning rate of the cycle.");
  require(o.warmup_fraction >= 0 && o.warmup_fraction <= 1, ErrorCode::kInvalidArgument, "OneCycle",
          "warmup_fraction is ", o.warmup_fraction, ". Set it to a number from 0 to 1.");
  require(o.start_divisor > 0 && o.end_divisor > 0, ErrorCode::kInvalidArgument, "OneCycle",
          "start_divisor is ", o.start_divisor, " and end_divisor ", o.end_divisor,
          ". Set both to positive numbers.");
  return [o](double, Count t) {
    const double start = o.maximum / o.start_divisor;
    const double end = start / o.end_divisor;
    const double peak = o.warmup_fraction * static_cast<double>(o.total_steps) - 1;
    const double last = static_cast<double>(o.total_steps - 1);
    const double now = std::min(static_cast<double>(t), last);
    if (now <= peak) return o.maximum + (start - o.maximum) * (peak > 0 ? half_wave(now / peak) : 0);
    return end + (o.maximum - end) * half_wave((now - peak) / (last - peak));
  };
}

Formula cyclic_formula(const CyclicOptions& o) {
  require_positive(o.steps_up, "Cyclic", "steps_up");
  require(o.maximum > o.minimum, ErrorCode::kInvalidArgument, "Cyclic", "maximum is ", o.maximum,
          " and minimum ", o.minimum, ". Set a maximum above the minimum.");
  return [o](double, Count t) {
    const Count cycle = t / (2 * o.steps_up);
    const Count within = t % (2 * o.steps_up);
    const double height = ratio(std::min(within, 2 * o.steps_up - within), o.steps_up);
    return o.minimum + (o.maximum - o.minimum) * height * (o.halve_peaks ? std::pow(0.5, cycle) : 1);
  };
}

Formula constant_with_warmup_formula(const ConstantWithWarmupOptions& o) {
  require_warmup(o.warmup_steps, "ConstantWithWarmup");
  return with_warmup(o.warmup_steps, [](Count) { return 1.0; });
}

/// Falls from 1 to `minimum` as `rest` falls from 1 to 0.
double above_minimum(double minimum, double rest) {
  return minimum + (1 - minimum) * rest;
}

Formula linear_with_warmup_formula(const LinearWithWarmupOptions& o) {
  require_span(o.warmup_steps, o.total_steps, "LinearWithWarmup");
  require_finite(o.minimum_ratio, "LinearWithWarmup", "minimum_ratio");
  return with_warmup(o.warmup_steps, [o](Count t) {
    const Count span = std::max<Count>(1, o.total_steps - o.warmup_steps);
    return above_minimum(o.minimum_ratio, ratio(std::max<Count>(0, o.total_steps - t), span));
  });
}

Formula cosine_with_warmup_formula(const CosineWithWarmupOptions& o) {
  require_span(o.warmup_steps, o.total_steps, "CosineWithWarmup");
  require_finite(o.minimum_ratio, "CosineWithWarmup", "minimum_ratio");
  require_finite(o.cycles, "CosineWithWarmup", "cycles");
  return with_warmup(o.warmup_steps, [o](Count t) {
    const Count span = std::max<Count>(1, o.total_steps - o.warmup_steps);
    return above_minimum(o.minimum_ratio, half_wave(2 * o.cycles * ratio(t - o.warmup_steps, span)));
  });
}

Formula inverse_sqrt_formula(const InverseSqrtOptions& o) {
  require_warmup(o.warmup_steps, "InverseSqrt");
  const Count timescale = o.timescale.value_or(o.warmup_steps > 0 ? o.warmup_steps : 10000);
  require_positive(timescale, "InverseSqrt", "timescale");
  return with_warmup(o.warmup_steps, [warmup = o.warmup_steps, timescale](Count t) {
    return std::sqrt(ratio(timescale, t - warmup + timescale));
  });
}

}  // namespace

ClosedFormScheduler::ClosedFormScheduler(torch::optim::Optimizer& optimizer, Formula formula)
    : LRScheduler(optimizer),
      target_(optimizer),
      formula_(std::move(formula)),
      base_(current_rates(optimizer)) {
  set_rates(rates_at(0));
}

SchedulerState ClosedFormScheduler::state() const {
  return {.step = step_count(*this), .base_learning_rates = base_};
}

void ClosedFormScheduler::load_state(const SchedulerState& state) {
  const std::size_t groups = target_.param_groups().size();
  require(state.base_learning_rates.empty() || state.base_learning_rates.size() == groups,
          ErrorCode::kMismatch, "scheduler.set_state", "the saved state is of an optimizer with ",
          state.base_learning_rates.size(), " groups, this one has ", groups,
          ". Make the optimizer with the groups that it had.");
  set_step_count(*this, state.step);
  if (!state.base_learning_rates.empty()) base_ = state.base_learning_rates;
  set_rates(rates_at(state.step));
}

std::vector<double> ClosedFormScheduler::get_lrs() {
  const std::vector<double> current = current_rates(target_);
  for (std::size_t group = base_.size(); group < current.size(); ++group) base_.push_back(current[group]);
  // LibTorch counts a step after it asked for the rates.
  return rates_at(step_count(*this) + 1);
}

std::vector<double> ClosedFormScheduler::rates_at(std::int64_t updates) const {
  std::vector<double> rates;
  rates.reserve(base_.size());
  for (const double base : base_) rates.push_back(formula_(base, updates));
  return rates;
}

void ClosedFormScheduler::set_rates(const std::vector<double>& rates) {
  auto& groups = target_.param_groups();
  for (std::size_t i = 0; i < rates.size(); ++i) groups[i].options().set_lr(rates[i]);
}

Lambda::Lambda(torch::optim::Optimizer& optimizer, std::function<double(std::int64_t)> factor)
    : ClosedFormScheduler(optimizer,
                          [factor = std::move(factor)](double base, Count t) { return base * factor(t); }) {}

Step::Step(torch::optim::Optimizer& optimizer, StepOptions options)
    : ClosedFormScheduler(optimizer, step_formula(options)) {}
MultiStep::MultiStep(torch::optim::Optimizer& optimizer, MultiStepOptions options)
    : ClosedFormScheduler(optimizer, multi_step_formula(std::move(options))) {}
Exponential::Exponential(torch::optim::Optimizer& optimizer, ExponentialOptions options)
    : ClosedFormScheduler(optimizer, exponential_formula(options)) {}
Constant::Constant(torch::optim::Optimizer& optimizer, ConstantOptions options)
    : ClosedFormScheduler(optimizer, constant_formula(options)) {}
Linear::Linear(torch::optim::Optimizer& optimizer, LinearOptions options)
    : ClosedFormScheduler(optimizer, linear_formula(options)) {}
Polynomial::Polynomial(torch::optim::Optimizer& optimizer, PolynomialOptions options)
    : ClosedFormScheduler(optimizer, polynomial_formula(options)) {}
Cosine::Cosine(torch::optim::Optimizer& optimizer, CosineOptions options)
    : ClosedFormScheduler(optimizer, cosine_formula(options)) {}
CosineRestarts::CosineRestarts(torch::optim::Optimizer& optimizer, CosineRestartsOptions options)
    : ClosedFormScheduler(optimizer, cosine_restarts_formula(options)) {}
OneCycle::OneCycle(torch::optim::Optimizer& optimizer, OneCycleOptions options)
    : ClosedFormScheduler(optimizer, one_cycle_formula(options)) {}
Cyclic::Cyclic(torch::optim::Optimizer& optimizer, CyclicOptions options)
    : ClosedFormScheduler(optimizer, cyclic_formula(options)) {}
ConstantWithWarmup::ConstantWithWarmup(torch::optim::Optimizer& optimizer, ConstantWithWarmupOptions options)
    : ClosedFormScheduler(optimizer, constant_with_warmup_formula(options)) {}
LinearWithWarmup::LinearWithWarmup(torch::optim::Optimizer& optimizer, LinearWithWarmupOptions options)
    : ClosedFormScheduler(optimizer, linear_with_warmup_formula(options)) {}
CosineWithWarmup::CosineWithWarmup(torch::optim::Optimizer& optimizer, CosineWithWarmupOptions options)
    : ClosedFormScheduler(optimizer, cosine_with_warmup_formula(options)) {}
InverseSqrt::InverseSqrt(torch::optim::Optimizer& optimizer, InverseSqrtOptions options)
    : ClosedFormScheduler(optimizer, inverse_sqrt_formula(options)) {}

}  // namespace hasten::optim

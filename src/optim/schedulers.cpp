#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>
#include <utility>

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <hasten/base/error.h>
#include <hasten/optim/schedulers.h>

#include "optim/step_count.h"

namespace hasten::optim {

namespace {

using Count = std::int64_t;

std::vector<double> current_rates(const torch::optim::Optimizer& optimizer) {
  std::vector<double> rates;
  rates.reserve(optimizer.param_groups().size());
  for (const auto& group : optimizer.param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

/// Where an optimizer keeps what schedules call its momentum; null where it has none.
double* momentum_of(torch::optim::OptimizerOptions& options) {
  if (auto* sgd = dynamic_cast<torch::optim::SGDOptions*>(&options)) return &sgd->momentum();
  if (auto* rmsprop = dynamic_cast<torch::optim::RMSpropOptions*>(&options)) return &rmsprop->momentum();
  if (auto* adam = dynamic_cast<torch::optim::AdamOptions*>(&options)) return &std::get<0>(adam->betas());
  if (auto* adamw = dynamic_cast<torch::optim::AdamWOptions*>(&options)) return &std::get<0>(adamw->betas());
  return nullptr;
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

/// Falls from 1 to `minimum` as `rest` falls from 1 to 0.
double above_minimum(double minimum, double rest) {
  return minimum + (1 - minimum) * rest;
}

Curves rate(Formula formula) {
  return {.rate = std::move(formula)};
}

}  // namespace

Curves curves(const LambdaOptions& o) {
  require(static_cast<bool>(o.factor), ErrorCode::kInvalidArgument, "Lambda",
          "the function is empty. Give it one that takes the number of updates.");
  return rate([factor = o.factor](double base, Count t) { return base * factor(t); });
}

Curves curves(const StepOptions& o) {
  require_positive(o.step_size, "Step", "step_size");
  require_finite(o.gamma, "Step", "gamma");
  return rate([o](double base, Count t) { return base * std::pow(o.gamma, t / o.step_size); });
}

Curves curves(const MultiStepOptions& o) {
  require_finite(o.gamma, "MultiStep", "gamma");
  std::vector<Count> milestones = o.milestones;
  std::sort(milestones.begin(), milestones.end());
  return rate([milestones, gamma = o.gamma](double base, Count t) {
    const auto passed = std::upper_bound(milestones.begin(), milestones.end(), t) - milestones.begin();
    return base * std::pow(gamma, passed);
  });
}

Curves curves(const ExponentialOptions& o) {
  require_finite(o.gamma, "Exponential", "gamma");
  return rate([o](double base, Count t) { return base * std::pow(o.gamma, t); });
}

Curves curves(const ConstantOptions& o) {
  require_finite(o.factor, "Constant", "factor");
  require(o.total_steps >= 0, ErrorCode::kInvalidArgument, "Constant", "total_steps is ", o.total_steps,
          ". Set it to 0 or more updates.");
  return rate([o](double base, Count t) { return t < o.total_steps ? base * o.factor : base; });
}

Curves curves(const LinearOptions& o) {
  require_finite(o.start_factor, "Linear", "start_factor");
  require_finite(o.end_factor, "Linear", "end_factor");
  require_positive(o.total_steps, "Linear", "total_steps");
  return rate([o](double base, Count t) {
    const double done = ratio(std::min(t, o.total_steps), o.total_steps);
    return base * (o.start_factor + (o.end_factor - o.start_factor) * done);
  });
}

Curves curves(const PolynomialOptions& o) {
  require_positive(o.total_steps, "Polynomial", "total_steps");
  require_finite(o.power, "Polynomial", "power");
  return rate([o](double base, Count t) {
    return base * std::pow(1 - ratio(std::min(t, o.total_steps), o.total_steps), o.power);
  });
}

Curves curves(const CosineOptions& o) {
  require_positive(o.total_steps, "Cosine", "total_steps");
  require_finite(o.minimum, "Cosine", "minimum");
  return rate([o](double base, Count t) {
    return o.minimum + (base - o.minimum) * half_wave(ratio(t, o.total_steps));
  });
}

Curves curves(const CosineRestartsOptions& o) {
  require_positive(o.first_cycle, "CosineRestarts", "first_cycle");
  require_positive(o.growth, "CosineRestarts", "growth");
  require_finite(o.minimum, "CosineRestarts", "minimum");
  return rate([o](double base, Count t) {
    Count length = o.first_cycle;
    if (o.growth == 1) t %= length;
    for (; t >= length; length *= o.growth) t -= length;
    return o.minimum + (base - o.minimum) * half_wave(ratio(t, length));
  });
}

Curves curves(const ConstantWithWarmupOptions& o) {
  require_warmup(o.warmup_steps, "ConstantWithWarmup");
  return rate(with_warmup(o.warmup_steps, [](Count) { return 1.0; }));
}

Curves curves(const LinearWithWarmupOptions& o) {
  require_span(o.warmup_steps, o.total_steps, "LinearWithWarmup");
  require_finite(o.minimum_ratio, "LinearWithWarmup", "minimum_ratio");
  return rate(with_warmup(o.warmup_steps, [o](Count t) {
    const Count span = std::max<Count>(1, o.total_steps - o.warmup_steps);
    return above_minimum(o.minimum_ratio, ratio(std::max<Count>(0, o.total_steps - t), span));
  }));
}

Curves curves(const CosineWithWarmupOptions& o) {
  require_span(o.warmup_steps, o.total_steps, "CosineWithWarmup");
  require_finite(o.minimum_ratio, "CosineWithWarmup", "minimum_ratio");
  require_finite(o.cycles, "CosineWithWarmup", "cycles");
  return rate(with_warmup(o.warmup_steps, [o](Count t) {
    const Count span = std::max<Count>(1, o.total_steps - o.warmup_steps);
    return above_minimum(o.minimum_ratio, half_wave(2 * o.cycles * ratio(t - o.warmup_steps, span)));
  }));
}

Curves curves(const InverseSqrtOptions& o) {
  require_warmup(o.warmup_steps, "InverseSqrt");
  const Count timescale = o.timescale.value_or(o.warmup_steps > 0 ? o.warmup_steps : 10000);
  require_positive(timescale, "InverseSqrt", "timescale");
  return rate(with_warmup(o.warmup_steps, [warmup = o.warmup_steps, timescale](Count t) {
    return std::sqrt(ratio(timescale, t - warmup + timescale));
  }));
}

namespace {

void require_momentum(const std::optional<MomentumRange>& range, const char* schedule) {
  if (!range) return;
  require(range->minimum >= 0 && range->minimum <= range->maximum && range->maximum < 1,
          ErrorCode::kInvalidArgument, schedule, "momentum goes from ", range->minimum, " to ",
          range->maximum, ". Set a minimum from 0 on, and a maximum from there on, below 1.");
}

/// From `start` at p = 0 to `end` at p = 1.
double anneal(Anneal kind, double start, double end, double p) {
  return kind == Anneal::kLinear ? start + (end - start) * p : end + (start - end) * half_wave(p);
}

/// A phase of a one-cycle schedule, from where the one before it ended.
struct Phase {
  double last_step;
  double rate;
  double momentum;
};

/// What the phases give at step t, beginning with `start`.
double value_at(const std::vector<Phase>& phases, double Phase::* value, double start, Anneal kind, Count t) {
  double begin = 0;
  double from = start;
  const double now = std::min(static_cast<double>(t), phases.back().last_step);
  for (const Phase& phase : phases) {
    if (now <= phase.last_step && phase.last_step > begin)
      return anneal(kind, from, phase.*value, (now - begin) / (phase.last_step - begin));
    begin = std::max(begin, phase.last_step);
    from = phase.*value;
  }
  return from;
}

}  // namespace

Curves curves(const OneCycleOptions& o) {
  require_positive(o.total_steps, "OneCycle", "total_steps");
  require(o.maximum > 0 && std::isfinite(o.maximum), ErrorCode::kInvalidArgument, "OneCycle", "maximum is ",
          o.maximum, ". Set it to the highest learning rate of the cycle.");
  const double most = o.three_phases ? 0.5 : 1;
  require(o.warmup_fraction >= 0 && o.warmup_fraction <= most, ErrorCode::kInvalidArgument, "OneCycle",
          "warmup_fraction is ", o.warmup_fraction, ". Set it to a number from 0 to ", most, ".");
  require(o.start_divisor > 0 && o.end_divisor > 0, ErrorCode::kInvalidArgument, "OneCycle",
          "start_divisor is ", o.start_divisor, " and end_divisor ", o.end_divisor,
          ". Set both to positive numbers.");
  require_momentum(o.momentum, "OneCycle");
  const double start = o.maximum / o.start_divisor;
  const double rise = o.warmup_fraction * static_cast<double>(o.total_steps);
  const MomentumRange momentum = o.momentum.value_or(MomentumRange{});
  std::vector<Phase> phases{{rise - 1, o.maximum, momentum.minimum}};
  if (o.three_phases) phases.push_back({2 * rise - 2, start, momentum.maximum});
  phases.push_back({static_cast<double>(o.total_steps - 1), start / o.end_divisor, momentum.maximum});
  const auto curve = [phases, kind = o.anneal](double Phase::* value, double from) -> Formula {
    return [=](double, Count t) { return value_at(phases, value, from, kind, t); };
  };
  return {.rate = curve(&Phase::rate, start),
          .momentum = o.momentum ? curve(&Phase::momentum, momentum.maximum) : Formula()};
}

Curves curves(const CyclicOptions& o) {
  const Count down = o.steps_down.value_or(o.steps_up);
  require_positive(o.steps_up, "Cyclic", "steps_up");
  require_positive(down, "Cyclic", "steps_down");
  require_finite(o.gamma, "Cyclic", "gamma");
  require(o.maximum > o.minimum, ErrorCode::kInvalidArgument, "Cyclic", "maximum is ", o.maximum,
          " and minimum ", o.minimum, ". Set a maximum above the minimum.");
  require_momentum(o.momentum, "Cyclic");
  // The height of the wave, from 0 to 1.
  const auto height = [o, down](Count t) {
    const Count cycle = t / (o.steps_up + down);
    const Count within = t % (o.steps_up + down);
    const double line =
        within <= o.steps_up ? ratio(within, o.steps_up) : ratio(o.steps_up + down - within, down);
    switch (o.mode) {
      case CyclicMode::kTriangular2:
        return line * std::pow(0.5, cycle);
      case CyclicMode::kExpRange:
        return line * std::pow(o.gamma, t);
      case CyclicMode::kTriangular:
        break;
    }
    return line;
  };
  Curves made =
      rate([o, height](double, Count t) { return o.minimum + (o.maximum - o.minimum) * height(t); });
  if (o.momentum)
    made.momentum = [range = *o.momentum, height](double, Count t) {
      return range.maximum - (range.maximum - range.minimum) * height(t);
    };
  return made;
}

Curves curves(const PolynomialWithWarmupOptions& o) {
  require_span(o.warmup_steps, o.total_steps, "PolynomialWithWarmup");
  require_finite(o.power, "PolynomialWithWarmup", "power");
  require_finite(o.minimum_ratio, "PolynomialWithWarmup", "minimum_ratio");
  return rate(with_warmup(o.warmup_steps, [o](Count t) {
    const Count span = std::max<Count>(1, o.total_steps - o.warmup_steps);
    const double rest = ratio(std::max<Count>(0, o.total_steps - t), span);
    return above_minimum(o.minimum_ratio, t < o.total_steps ? std::pow(rest, o.power) : 0);
  }));
}

Curves curves(const CosineRestartsWithWarmupOptions& o) {
  require_span(o.warmup_steps, o.total_steps, "CosineRestartsWithWarmup");
  require_positive(o.cycles, "CosineRestartsWithWarmup", "cycles");
  return rate(with_warmup(o.warmup_steps, [o](Count t) {
    if (t >= o.total_steps) return 0.0;
    const double waves =
        ratio(t - o.warmup_steps, o.total_steps - o.warmup_steps) * static_cast<double>(o.cycles);
    return half_wave(waves - std::floor(waves));
  }));
}

Curves curves(const WarmupStableDecayOptions& o) {
  constexpr const char* kName = "WarmupStableDecay";
  require(o.warmup_steps >= 0 && o.stable_steps >= 0 && o.decay_steps >= 0, ErrorCode::kInvalidArgument,
          kName, "warmup_steps is ", o.warmup_steps, ", stable_steps ", o.stable_steps, " and decay_steps ",
          o.decay_steps, ". Set each to 0 or more updates.");
  require_finite(o.minimum_ratio, kName, "minimum_ratio");
  require_finite(o.cycles, kName, "cycles");
  using Line = WarmupStableDecayLine;
  const auto fall = [](Line line, double p, double cycles) {
    switch (line) {
      case Line::kCosine:
        return half_wave(2 * cycles * p);
      case Line::kOneMinusSqrt:
        return 1 - std::sqrt(p);
      case Line::kLinear:
        break;
    }
    return 1 - p;
  };
  return rate([o, fall](double base, Count t) {
    const Count decay_begins = o.warmup_steps + o.stable_steps;
    double height = 1;
    if (t < o.warmup_steps)
      height = fall(o.warmup_line, 1 - ratio(t, o.warmup_steps), 0.5);
    else if (t >= decay_begins + o.decay_steps)
      height = 0;
    else if (t >= decay_begins)
      height = fall(o.decay_line, ratio(t - decay_begins, o.decay_steps), o.cycles);
    return base * std::max(0.0, above_minimum(o.minimum_ratio, height));
  });
}

Curves curves(const SequentialOptions& o) {
  require(!o.parts.empty() && o.milestones.size() + 1 == o.parts.size(), ErrorCode::kInvalidArgument,
          "Sequential", o.parts.size(), " parts have ", o.milestones.size(),
          " milestones between them. Give one milestone fewer than parts.");
  require(std::ranges::is_sorted(o.milestones, std::less_equal<>()) &&
              (o.milestones.empty() || o.milestones[0] > 0),
          ErrorCode::kInvalidArgument, "Sequential",
          "the milestones do not rise from above 0. Give the update counts at which parts begin, in order.");
  const auto curve = [&o](Formula Curves::* which) -> Formula {
    std::vector<Formula> parts;
    for (const Part& part : o.parts) parts.push_back(part.get().*which);
    return [parts, milestones = o.milestones](double base, Count t) {
      const auto next = std::ranges::upper_bound(milestones, t);
      const auto index = static_cast<std::size_t>(next - milestones.begin());
      return parts[index](base, t - (index == 0 ? 0 : milestones[index - 1]));
    };
  };
  const bool cycles = std::ranges::all_of(o.parts, [](const Part& part) { return !!part.get().momentum; });
  require(cycles || std::ranges::none_of(o.parts, [](const Part& part) { return !!part.get().momentum; }),
          ErrorCode::kInvalidArgument, "Sequential",
          "some parts move the momentum and some do not. Let all of them or none do so.");
  return {.rate = curve(&Curves::rate), .momentum = cycles ? curve(&Curves::momentum) : Formula()};
}

Curves curves(const ChainedOptions& o) {
  require(!o.parts.empty(), ErrorCode::kInvalidArgument, "Chained", "it has no parts. Give one or more.");
  Curves made = rate([parts = o.parts](double base, Count t) {
    for (const Part& part : parts) base = part.get().rate(base, t);
    return base;
  });
  for (const Part& part : o.parts)
    if (part.get().momentum) made.momentum = part.get().momentum;  // the last one's wins, as for rates
  return made;
}

ClosedFormScheduler::ClosedFormScheduler(torch::optim::Optimizer& optimizer, Curves curves)
    : LRScheduler(optimizer),
      target_(optimizer),
      curves_(std::move(curves)),
      base_(current_rates(optimizer)) {
  if (curves_.momentum)
    for (auto& group : optimizer.param_groups())
      require(
          momentum_of(group.options()) != nullptr, ErrorCode::kInvalidArgument, "scheduler",
          "the schedule moves the momentum, but the optimizer has none. Use SGD, RMSprop, Adam or AdamW, or "
          "leave the momentum out of the schedule.");
  set_values(0);
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
  set_values(state.step);
}

std::vector<double> ClosedFormScheduler::get_lrs() {
  const std::vector<double> current = current_rates(target_);
  for (std::size_t group = base_.size(); group < current.size(); ++group) base_.push_back(current[group]);
  // LibTorch counts a step after it asked for the rates.
  const std::int64_t updates = step_count(*this) + 1;
  set_momentum(updates);
  return rates_at(updates);
}

std::vector<double> ClosedFormScheduler::rates_at(std::int64_t updates) const {
  std::vector<double> rates;
  rates.reserve(base_.size());
  for (const double base : base_) rates.push_back(curves_.rate(base, updates));
  return rates;
}

void ClosedFormScheduler::set_values(std::int64_t updates) {
  const std::vector<double> rates = rates_at(updates);
  auto& groups = target_.param_groups();
  for (std::size_t i = 0; i < rates.size(); ++i) groups[i].options().set_lr(rates[i]);
  set_momentum(updates);
}

void ClosedFormScheduler::set_momentum(std::int64_t updates) {
  if (!curves_.momentum) return;
  for (auto& group : target_.param_groups())
    if (double* momentum = momentum_of(group.options())) *momentum = curves_.momentum(*momentum, updates);
}

}  // namespace hasten::optim

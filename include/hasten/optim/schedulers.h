#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include <torch/optim/schedulers/lr_scheduler.h>

#include <hasten/optim/scheduler_state.h>

/// Learning rate schedules as functions of the number of updates t: the optimizer's first update uses the
/// rate at t = 0, and each `step()` of the schedule goes on to t + 1. All set the rates of t = 0 when they
/// are made. The optimizer is borrowed, as LibTorch's schedulers do it, and must neither move nor die before
/// the schedule. Options are checked; `kInvalidArgument` is thrown with the values.
namespace hasten::optim {

/// A schedule whose rate depends on nothing but a group's base rate and t, so that its state is one number.
/// The base is the rate that the group had when the schedule was made, or, for a group added later, at the
/// next `step()`.
class ClosedFormScheduler : public torch::optim::LRScheduler {
 public:
  /// The learning rate after `updates` updates of a group with the base rate `base`.
  using Formula = std::function<double(double base, std::int64_t updates)>;

  ClosedFormScheduler(torch::optim::Optimizer& optimizer, Formula formula);

  [[nodiscard]] SchedulerState state() const;

  /// Goes on from `state` and sets the optimizer's rates. Throws as `set_state` does.
  void load_state(const SchedulerState& state);

 protected:
  std::vector<double> get_lrs() override;

 private:
  [[nodiscard]] std::vector<double> rates_at(std::int64_t updates) const;
  void set_rates(const std::vector<double>& rates);

  torch::optim::Optimizer& target_;
  Formula formula_;
  std::vector<double> base_;
};

/// base * factor(t), for a function of the user's. As `LambdaLR` of PyTorch.
class Lambda : public ClosedFormScheduler {
 public:
  Lambda(torch::optim::Optimizer& optimizer, std::function<double(std::int64_t)> factor);
};

/// base * gamma^floor(t / step_size). As `StepLR` of PyTorch in Python; LibTorch's own StepLR decays one step
/// later.
struct StepOptions {
  std::int64_t step_size = 0;  ///< updates between two decays; required
  double gamma = 0.1;          ///< what each decay multiplies by
};
class Step : public ClosedFormScheduler {
 public:
  Step(torch::optim::Optimizer& optimizer, StepOptions options);
};

/// base * gamma^(number of milestones <= t). As `MultiStepLR` of PyTorch.
struct MultiStepOptions {
  std::vector<std::int64_t> milestones = {};  ///< update counts, in any order; one given twice counts twice
  double gamma = 0.1;                         ///< what each decay multiplies by
};
class MultiStep : public ClosedFormScheduler {
 public:
  MultiStep(torch::optim::Optimizer& optimizer, MultiStepOptions options);
};

/// base * gamma^t. As `ExponentialLR` of PyTorch.
struct ExponentialOptions {
  double gamma = 0.99;  ///< what each update multiplies by
};
class Exponential : public ClosedFormScheduler {
 public:
  Exponential(torch::optim::Optimizer& optimizer, ExponentialOptions options);
};

/// base * factor while t < total_steps, then base. As `ConstantLR` of PyTorch.
struct ConstantOptions {
  double factor = 1.0 / 3;
  std::int64_t total_steps = 5;  ///< updates with the reduced rate
};
class Constant : public ClosedFormScheduler {
 public:
  Constant(torch::optim::Optimizer& optimizer, ConstantOptions options);
};

/// base * (start + (end - start) * min(t, total_steps) / total_steps). As `LinearLR` of PyTorch.
struct LinearOptions {
  double start_factor = 1.0 / 3;
  double end_factor = 1;
  std::int64_t total_steps = 5;  ///< updates from start to end
};
class Linear : public ClosedFormScheduler {
 public:
  Linear(torch::optim::Optimizer& optimizer, LinearOptions options);
};

/// base * (1 - min(t, total_steps) / total_steps)^power. As `PolynomialLR` of PyTorch.
struct PolynomialOptions {
  std::int64_t total_steps = 0;  ///< updates until 0; required
  double power = 1;
};
class Polynomial : public ClosedFormScheduler {
 public:
  Polynomial(torch::optim::Optimizer& optimizer, PolynomialOptions options);
};

/// minimum + (base - minimum) * (1 + cos(pi t / total_steps)) / 2: half a wave down in total_steps, and up
/// again after that. As `CosineAnnealingLR` of PyTorch; Loshchilov and Hutter, arXiv:1608.03983, equation 5.
struct CosineOptions {
  std::int64_t total_steps = 0;  ///< updates until the minimum; required
  double minimum = 0;            ///< a learning rate
};
class Cosine : public ClosedFormScheduler {
 public:
  Cosine(torch::optim::Optimizer& optimizer, CosineOptions options);
};

/// `Cosine` that starts afresh after first_cycle updates, the next cycle being `growth` times as long, and so
/// on. As `CosineAnnealingWarmRestarts` of PyTorch; arXiv:1608.03983.
struct CosineRestartsOptions {
  std::int64_t first_cycle = 0;  ///< updates in the first cycle; required
  std::int64_t growth = 1;       ///< how many times as long each cycle is as the one before
  double minimum = 0;            ///< a learning rate
};
class CosineRestarts : public ClosedFormScheduler {
 public:
  CosineRestarts(torch::optim::Optimizer& optimizer, CosineRestartsOptions options);
};

/// Half a cosine wave up from maximum / start_divisor to maximum, which is reached at t = warmup_fraction *
/// total_steps - 1, and another down to maximum / start_divisor / end_divisor at t = total_steps - 1, where
/// it stays. The groups' own rates play no part. As `OneCycleLR` of PyTorch without its cycling of momentum;
/// Smith and Topin, arXiv:1708.07120.
struct OneCycleOptions {
  double maximum = 0;            ///< the highest learning rate; required
  std::int64_t total_steps = 0;  ///< updates in the cycle; required
  double warmup_fraction = 0.3;  ///< part of the cycle that rises
  double start_divisor = 25;
  double end_divisor = 1e4;
};
class OneCycle : public ClosedFormScheduler {
 public:
  OneCycle(torch::optim::Optimizer& optimizer, OneCycleOptions options);
};

/// Straight lines up from `minimum` to a peak in steps_up updates and down again in as many, repeated. The
/// first peak is `maximum`; with `halve_peaks` each peak rises half as far above the minimum as the one
/// before. The groups' own rates play no part. As `CyclicLR` of PyTorch, modes triangular and triangular2,
/// without its cycling of momentum; Smith, arXiv:1506.01186.
struct CyclicOptions {
  double minimum = 0;            ///< a learning rate
  double maximum = 0;            ///< a learning rate; required
  std::int64_t steps_up = 2000;  ///< updates from the minimum to the peak
  bool halve_peaks = false;
};
class Cyclic : public ClosedFormScheduler {
 public:
  Cyclic(torch::optim::Optimizer& optimizer, CyclicOptions options);
};

/// base * t / warmup_steps while t < warmup_steps, then base.
struct ConstantWithWarmupOptions {
  std::int64_t warmup_steps = 0;  ///< updates of the rise from 0
};
class ConstantWithWarmup : public ClosedFormScheduler {
 public:
  ConstantWithWarmup(torch::optim::Optimizer& optimizer, ConstantWithWarmupOptions options);
};

/// A rise from 0 in warmup_steps updates, then a straight line to minimum_ratio * base at total_steps, where
/// it stays: base * (m + (1 - m) * (total - t) / (total - warmup)).
struct LinearWithWarmupOptions {
  std::int64_t warmup_steps = 0;  ///< updates of the rise from 0
  std::int64_t total_steps = 0;   ///< updates in all, the rise included; required
  double minimum_ratio = 0;       ///< the part of the base rate that is left at the end
};
class LinearWithWarmup : public ClosedFormScheduler {
 public:
  LinearWithWarmup(torch::optim::Optimizer& optimizer, LinearWithWarmupOptions options);
};

/// A rise from 0 in warmup_steps updates, then a cosine: base * (m + (1 - m) * (1 + cos(2 pi cycles p)) / 2)
/// with p = (t - warmup) / (total - warmup). With the default of half a cycle it is at minimum_ratio * base
/// at total_steps, and past it rises again, as the schedule of that name in Python does.
struct CosineWithWarmupOptions {
  std::int64_t warmup_steps = 0;  ///< updates of the rise from 0
  std::int64_t total_steps = 0;   ///< updates in all, the rise included; required
  double minimum_ratio = 0;       ///< the part of the base rate that is left at the bottom
  double cycles = 0.5;            ///< waves between warm-up and total_steps
};
class CosineWithWarmup : public ClosedFormScheduler {
 public:
  CosineWithWarmup(torch::optim::Optimizer& optimizer, CosineWithWarmupOptions options);
};

/// A rise from 0 in warmup_steps updates, then base * sqrt(timescale / (t - warmup_steps + timescale)).
/// Vaswani and others, arXiv:1706.03762, section 5.3, with the peak at `base`.
struct InverseSqrtOptions {
  std::int64_t warmup_steps = 0;                         ///< updates of the rise from 0
  std::optional<std::int64_t> timescale = std::nullopt;  ///< unset: warmup_steps, or 10000 without a warm-up
};
class InverseSqrt : public ClosedFormScheduler {
 public:
  InverseSqrt(torch::optim::Optimizer& optimizer, InverseSqrtOptions options);
};

}  // namespace hasten::optim

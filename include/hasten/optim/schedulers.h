#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include <torch/optim/schedulers/lr_scheduler.h>

#include <hasten/optim/scheduler_state.h>

/// Learning rate schedules as functions of the number of updates t: the optimizer's first update uses the
/// rate at t = 0, and each `step()` of the schedule goes on to t + 1. All set the rates of t = 0 when they
/// are made. The optimizer is borrowed, as LibTorch's schedulers do it, and must neither move nor die before
/// the schedule. Options are checked; `kInvalidArgument` is thrown with the values.
namespace hasten::optim {

/// A function of a group's base value and the number of updates.
using Formula = std::function<double(double base, std::int64_t updates)>;

/// What a schedule says of each group: the learning rate, from the group's base rate, and the momentum where
/// it moves that too (SGD's and RMSprop's momentum, Adam's and AdamW's first beta).
struct Curves {
  Formula rate = {};
  Formula momentum = {};  ///< empty: left alone; its base counts for nothing
};

/// A schedule whose rate depends on nothing but a group's base rate and t, so that its state is one number.
/// The base is the rate that the group had when the schedule was made, or, for a group added later, at the
/// next `step()`.
class ClosedFormScheduler : public torch::optim::LRScheduler {
 public:
  /// Throws `kInvalidArgument` when there is a curve for the momentum and the optimizer has none.
  ClosedFormScheduler(torch::optim::Optimizer& optimizer, Curves curves);

  [[nodiscard]] SchedulerState state() const;

  /// Goes on from `state` and sets the optimizer's rates. Throws as `set_state` does.
  void load_state(const SchedulerState& state);

 protected:
  std::vector<double> get_lrs() override;

 private:
  [[nodiscard]] std::vector<double> rates_at(std::int64_t updates) const;
  void set_values(std::int64_t updates);
  void set_momentum(std::int64_t updates);

  torch::optim::Optimizer& target_;
  Curves curves_;
  std::vector<double> base_;
};

/// The schedule that options describe: `Step schedule(sgd, {.step_size = 30})`.
template <class Options>
class Scheduler final : public ClosedFormScheduler {
 public:
  Scheduler(torch::optim::Optimizer& optimizer, const Options& options)
      : ClosedFormScheduler(optimizer, curves(options)) {}
};

/// base * factor(t), for a function of the user's. As `LambdaLR` of PyTorch.
struct LambdaOptions {
  std::function<double(std::int64_t)> factor = {};  ///< required
};
[[nodiscard]] Curves curves(const LambdaOptions& options);
class Lambda final : public ClosedFormScheduler {
 public:
  Lambda(torch::optim::Optimizer& optimizer, std::function<double(std::int64_t)> factor)
      : ClosedFormScheduler(optimizer, curves(LambdaOptions{std::move(factor)})) {}
};

/// base * gamma^floor(t / step_size). As `StepLR` of PyTorch in Python; LibTorch's own StepLR decays one step
/// later.
struct StepOptions {
  std::int64_t step_size = 0;  ///< updates between two decays; required
  double gamma = 0.1;          ///< what each decay multiplies by
};
[[nodiscard]] Curves curves(const StepOptions& options);
using Step = Scheduler<StepOptions>;

/// base * gamma^(number of milestones <= t). As `MultiStepLR` of PyTorch.
struct MultiStepOptions {
  std::vector<std::int64_t> milestones = {};  ///< update counts, in any order; one given twice counts twice
  double gamma = 0.1;                         ///< what each decay multiplies by
};
[[nodiscard]] Curves curves(const MultiStepOptions& options);
using MultiStep = Scheduler<MultiStepOptions>;

/// base * gamma^t. As `ExponentialLR` of PyTorch.
struct ExponentialOptions {
  double gamma = 0.99;  ///< what each update multiplies by
};
[[nodiscard]] Curves curves(const ExponentialOptions& options);
using Exponential = Scheduler<ExponentialOptions>;

/// base * factor while t < total_steps, then base. As `ConstantLR` of PyTorch.
struct ConstantOptions {
  double factor = 1.0 / 3;
  std::int64_t total_steps = 5;  ///< updates with the reduced rate
};
[[nodiscard]] Curves curves(const ConstantOptions& options);
using Constant = Scheduler<ConstantOptions>;

/// base * (start + (end - start) * min(t, total_steps) / total_steps). As `LinearLR` of PyTorch.
struct LinearOptions {
  double start_factor = 1.0 / 3;
  double end_factor = 1;
  std::int64_t total_steps = 5;  ///< updates from start to end
};
[[nodiscard]] Curves curves(const LinearOptions& options);
using Linear = Scheduler<LinearOptions>;

/// base * (1 - min(t, total_steps) / total_steps)^power. As `PolynomialLR` of PyTorch.
struct PolynomialOptions {
  std::int64_t total_steps = 0;  ///< updates until 0; required
  double power = 1;
};
[[nodiscard]] Curves curves(const PolynomialOptions& options);
using Polynomial = Scheduler<PolynomialOptions>;

/// minimum + (base - minimum) * (1 + cos(pi t / total_steps)) / 2: half a wave down in total_steps, and up
/// again after that. As `CosineAnnealingLR` of PyTorch; Loshchilov and Hutter, arXiv:1608.03983, equation 5.
struct CosineOptions {
  std::int64_t total_steps = 0;  ///< updates until the minimum; required
  double minimum = 0;            ///< a learning rate
};
[[nodiscard]] Curves curves(const CosineOptions& options);
using Cosine = Scheduler<CosineOptions>;

/// `Cosine` that starts afresh after first_cycle updates, the next cycle being `growth` times as long, and so
/// on. As `CosineAnnealingWarmRestarts` of PyTorch; arXiv:1608.03983.
struct CosineRestartsOptions {
  std::int64_t first_cycle = 0;  ///< updates in the first cycle; required
  std::int64_t growth = 1;       ///< how many times as long each cycle is as the one before
  double minimum = 0;            ///< a learning rate
};
[[nodiscard]] Curves curves(const CosineRestartsOptions& options);
using CosineRestarts = Scheduler<CosineRestartsOptions>;

/// The momentum of a cyclic schedule, which falls from `maximum` to `minimum` as the rate rises.
struct MomentumRange {
  double minimum = 0.85;
  double maximum = 0.95;
};

/// Along which line a schedule goes from one rate to another.
enum class Anneal { kCosine, kLinear };

/// A rise from maximum / start_divisor to maximum, which is reached at t = warmup_fraction * total_steps - 1,
/// and a fall to maximum / start_divisor / end_divisor at t = total_steps - 1, where it stays. With
/// `three_phases` the fall has two: it is back at maximum / start_divisor after as many steps as the rise
/// took. The groups' own rates play no part. As `OneCycleLR` of PyTorch, whose cycling of momentum is off
/// here unless asked for; Smith and Topin, arXiv:1708.07120.
struct OneCycleOptions {
  double maximum = 0;            ///< the highest learning rate; required
  std::int64_t total_steps = 0;  ///< updates in the cycle; required
  double warmup_fraction = 0.3;  ///< part of the cycle that rises
  double start_divisor = 25;
  double end_divisor = 1e4;
  Anneal anneal = Anneal::kCosine;
  bool three_phases = false;
  std::optional<MomentumRange> momentum = std::nullopt;  ///< unset: momentum is left alone
};
[[nodiscard]] Curves curves(const OneCycleOptions& options);
using OneCycle = Scheduler<OneCycleOptions>;

/// How the peaks of a cyclic schedule change: the height above the minimum is multiplied by
enum class CyclicMode {
  kTriangular,   ///< 1
  kTriangular2,  ///< 2^-(cycles done)
  kExpRange      ///< gamma^t
};

/// Straight lines up from `minimum` to `maximum` in steps_up updates and down again in steps_down, repeated.
/// The groups' own rates play no part. As `CyclicLR` of PyTorch, whose cycling of momentum is off here unless
/// asked for; Smith, arXiv:1506.01186.
struct CyclicOptions {
  double minimum = 0;            ///< a learning rate
  double maximum = 0;            ///< a learning rate; required
  std::int64_t steps_up = 2000;  ///< updates from the minimum to the peak
  CyclicMode mode = CyclicMode::kTriangular;
  std::optional<std::int64_t> steps_down = std::nullopt;  ///< unset: as many as steps_up
  double gamma = 1;                                       ///< for `kExpRange`
  std::optional<MomentumRange> momentum = std::nullopt;   ///< unset: momentum is left alone
};
[[nodiscard]] Curves curves(const CyclicOptions& options);
using Cyclic = Scheduler<CyclicOptions>;

/// base * t / warmup_steps while t < warmup_steps, then base.
struct ConstantWithWarmupOptions {
  std::int64_t warmup_steps = 0;  ///< updates of the rise from 0
};
[[nodiscard]] Curves curves(const ConstantWithWarmupOptions& options);
using ConstantWithWarmup = Scheduler<ConstantWithWarmupOptions>;

/// A rise from 0 in warmup_steps updates, then a straight line to minimum_ratio * base at total_steps, where
/// it stays: base * (m + (1 - m) * (total - t) / (total - warmup)).
struct LinearWithWarmupOptions {
  std::int64_t warmup_steps = 0;  ///< updates of the rise from 0
  std::int64_t total_steps = 0;   ///< updates in all, the rise included; required
  double minimum_ratio = 0;       ///< the part of the base rate that is left at the end
};
[[nodiscard]] Curves curves(const LinearWithWarmupOptions& options);
using LinearWithWarmup = Scheduler<LinearWithWarmupOptions>;

/// A rise from 0 in warmup_steps updates, then a cosine: base * (m + (1 - m) * (1 + cos(2 pi cycles p)) / 2)
/// with p = (t - warmup) / (total - warmup). With the default of half a cycle it is at minimum_ratio * base
/// at total_steps, and past it rises again, as the schedule of that name in Python does.
struct CosineWithWarmupOptions {
  std::int64_t warmup_steps = 0;  ///< updates of the rise from 0
  std::int64_t total_steps = 0;   ///< updates in all, the rise included; required
  double minimum_ratio = 0;       ///< the part of the base rate that is left at the bottom
  double cycles = 0.5;            ///< waves between warm-up and total_steps
};
[[nodiscard]] Curves curves(const CosineWithWarmupOptions& options);
using CosineWithWarmup = Scheduler<CosineWithWarmupOptions>;

/// A rise from 0 in warmup_steps updates, then base * sqrt(timescale / (t - warmup_steps + timescale)).
/// Vaswani and others, arXiv:1706.03762, section 5.3, with the peak at `base`.
struct InverseSqrtOptions {
  std::int64_t warmup_steps = 0;                         ///< updates of the rise from 0
  std::optional<std::int64_t> timescale = std::nullopt;  ///< unset: warmup_steps, or 10000 without a warm-up
};
[[nodiscard]] Curves curves(const InverseSqrtOptions& options);
using InverseSqrt = Scheduler<InverseSqrtOptions>;

/// A rise from 0 in warmup_steps updates, then a fall to minimum_ratio * base at total_steps, where it stays:
/// base * (m + (1 - m) * ((total - t) / (total - warmup))^power). As Transformers'
/// `get_polynomial_decay_schedule_with_warmup`, whose `lr_end` is minimum_ratio times the rate.
struct PolynomialWithWarmupOptions {
  std::int64_t warmup_steps = 0;  ///< updates of the rise from 0
  std::int64_t total_steps = 0;   ///< updates in all, the rise included; required
  double minimum_ratio = 0;       ///< the part of the base rate that is left at the end
  double power = 1;
};
[[nodiscard]] Curves curves(const PolynomialWithWarmupOptions& options);
using PolynomialWithWarmup = Scheduler<PolynomialWithWarmupOptions>;

/// A rise from 0 in warmup_steps updates, then `cycles` half waves of a cosine from base to 0, each beginning
/// afresh; 0 from total_steps on. As Transformers' `get_cosine_with_hard_restarts_schedule_with_warmup`.
struct CosineRestartsWithWarmupOptions {
  std::int64_t warmup_steps = 0;  ///< updates of the rise from 0
  std::int64_t total_steps = 0;   ///< updates in all, the rise included; required
  std::int64_t cycles = 1;
};
[[nodiscard]] Curves curves(const CosineRestartsWithWarmupOptions& options);
using CosineRestartsWithWarmup = Scheduler<CosineRestartsWithWarmupOptions>;

/// Along which line a warm-up-stable-decay schedule rises or falls; p goes from 0 to 1 on the way down, and
/// from 1 to 0 on the way up.
enum class WarmupStableDecayLine {
  kLinear,       ///< 1 - p
  kCosine,       ///< (1 + cos(2 pi cycles p)) / 2; half a cycle for the warm-up
  kOneMinusSqrt  ///< 1 - sqrt(p)
};

/// A rise in warmup_steps updates, base for stable_steps, and a fall in decay_steps, between minimum_ratio *
/// base and base. As Transformers' `get_wsd_schedule`; Hu and others, arXiv:2404.06395.
struct WarmupStableDecayOptions {
  std::int64_t warmup_steps = 0;
  std::int64_t stable_steps = 0;
  std::int64_t decay_steps = 0;
  double minimum_ratio = 0;  ///< the part of the base rate at the start and that is left at the end
  WarmupStableDecayLine warmup_line = WarmupStableDecayLine::kLinear;
  WarmupStableDecayLine decay_line = WarmupStableDecayLine::kCosine;
  double cycles = 0.5;  ///< waves of a cosine decay
};
[[nodiscard]] Curves curves(const WarmupStableDecayOptions& options);
using WarmupStableDecay = Scheduler<WarmupStableDecayOptions>;

/// Any schedule of this file as a part of another: made from its options, `LinearOptions{...}`.
class Part {
 public:
  template <class Options>
    requires requires(const Options& options) { curves(options); }
  Part(const Options& options) : curves_(curves(options)) {}  // NOLINT: options are what a part is

  [[nodiscard]] const Curves& get() const noexcept { return curves_; }

 private:
  Curves curves_;
};

/// One schedule after another: part i begins at milestone i - 1 with its own t = 0 and the groups' base
/// rates. As `SequentialLR` of PyTorch.
struct SequentialOptions {
  std::vector<Part> parts = {};               ///< required
  std::vector<std::int64_t> milestones = {};  ///< update counts, rising, one fewer than parts
};
[[nodiscard]] Curves curves(const SequentialOptions& options);
using Sequential = Scheduler<SequentialOptions>;

/// All schedules at once: each takes the rate that the one before it gives as its base. As `ChainedScheduler`
/// of PyTorch for schedules whose rate is the base times a factor. A part with rates of its own (a minimum, a
/// peak) keeps them here, where PyTorch's result depends on how its recursion rounds.
struct ChainedOptions {
  std::vector<Part> parts = {};  ///< required
};
[[nodiscard]] Curves curves(const ChainedOptions& options);
using Chained = Scheduler<ChainedOptions>;

}  // namespace hasten::optim

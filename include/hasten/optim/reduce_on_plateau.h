#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace hasten::optim {

/// Whether a metric is better when it is lower or when it is higher.
enum class PlateauMode { kMin, kMax };

/// By how much a metric must be better to count: by a part of the best one, or by a number.
enum class PlateauThreshold { kRelative, kAbsolute };

struct ReduceOnPlateauOptions {
  PlateauMode mode = PlateauMode::kMin;
  double factor = 0.1;         ///< what a learning rate is multiplied by; below 1
  std::int64_t patience = 10;  ///< how many metrics in a row may fail to improve before rates are reduced
  double threshold = 1e-4;
  PlateauThreshold threshold_mode = PlateauThreshold::kRelative;
  std::int64_t cooldown = 0;          ///< metrics after a reduction that count as no failure
  std::vector<double> minimum = {0};  ///< the lowest rate: one for all groups, or one a group
  double eps = 1e-8;                  ///< a reduction by no more than this is not made
};

/// What a checkpoint keeps of it. The rates themselves are options of the optimizer's groups.
struct PlateauState {
  std::optional<double> best = std::nullopt;  ///< unset before the first metric that is a number
  std::int64_t failures = 0;                  ///< metrics since then that did not improve
  std::int64_t cooldown_left = 0;
};

/// Multiplies the learning rates by `factor` when a metric, usually of each epoch's evaluation, has stopped
/// improving. As `ReduceLROnPlateau` of PyTorch, NaN being no improvement. It is no `LRScheduler`, whose
/// `step` takes no metric. Borrows the optimizer. Throws `kInvalidArgument` for options that cannot work.
class ReduceOnPlateau {
 public:
  ReduceOnPlateau(torch::optim::Optimizer& optimizer, ReduceOnPlateauOptions options = {});

  /// Takes in a metric; returns whether rates were reduced. In a run of several processes use the prepared
  /// handle's, which takes the mean over them.
  bool step(double metric);

  [[nodiscard]] const PlateauState& state() const noexcept { return state_; }
  void load_state(const PlateauState& state) { state_ = state; }

 private:
  [[nodiscard]] bool improves(double metric) const;
  bool reduce();

  torch::optim::Optimizer& optimizer_;
  ReduceOnPlateauOptions options_;
  PlateauState state_;
};

}  // namespace hasten::optim

#pragma once

#include <cstdint>
#include <vector>

#include <torch/optim/schedulers/lr_scheduler.h>

namespace hasten::optim {

/// What a checkpoint keeps of a scheduler. The learning rates themselves are options of the optimizer's
/// groups.
struct SchedulerState {
  /// How often `step()` was called.
  std::int64_t step = 0;
  /// The rates, one a group, that a schedule of this library scales; empty for other schedulers.
  std::vector<double> base_learning_rates;
};

/// The state of any LibTorch scheduler, this library's or not.
[[nodiscard]] SchedulerState get_state(const torch::optim::LRScheduler& scheduler);

/// Makes the scheduler go on from `state`. A schedule of this library sets its optimizer's learning rates at
/// once; for any other scheduler restore the optimizer's state too. Throws, and changes nothing,
/// `kInvalidArgument` for a step count out of range and `kMismatch` for another number of groups.
void set_state(torch::optim::LRScheduler& scheduler, const SchedulerState& state);

}  // namespace hasten::optim

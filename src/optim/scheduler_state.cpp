#include <hasten/base/error.h>
#include <hasten/optim/scheduler_state.h>
#include <hasten/optim/schedulers.h>

#include "optim/step_count.h"

namespace hasten::optim {

SchedulerState get_state(const torch::optim::LRScheduler& scheduler) {
  if (const auto* closed = dynamic_cast<const ClosedFormScheduler*>(&scheduler)) return closed->state();
  return {.step = step_count(scheduler), .base_learning_rates = {}};
}

void set_state(torch::optim::LRScheduler& scheduler, const SchedulerState& state) {
  if (auto* closed = dynamic_cast<ClosedFormScheduler*>(&scheduler)) {
    closed->load_state(state);
    return;
  }
  require(state.base_learning_rates.empty(), ErrorCode::kMismatch, "scheduler.set_state",
          "the saved state holds ", state.base_learning_rates.size(),
          " base learning rates, so it is of a schedule of this library, but this scheduler is not. Make the "
          "scheduler that was saved.");
  set_step_count(scheduler, state.step);
}

}  // namespace hasten::optim

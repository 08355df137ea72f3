#pragma once

#include <cstdint>
#include <limits>

#include <torch/optim/schedulers/lr_scheduler.h>

#include <hasten/base/error.h>

namespace hasten::optim {

namespace detail {

/// LibTorch shows the count to subclasses only; this one names the member for all schedulers.
struct StepCount : torch::optim::LRScheduler {
  static constexpr unsigned torch::optim::LRScheduler::* kMember = &StepCount::step_count_;
};

}  // namespace detail

/// How often the scheduler stepped.
[[nodiscard]] inline std::int64_t step_count(const torch::optim::LRScheduler& scheduler) {
  return scheduler.*detail::StepCount::kMember;
}

inline void set_step_count(torch::optim::LRScheduler& scheduler, std::int64_t count) {
  require(count >= 0 && count <= std::numeric_limits<unsigned>::max(), ErrorCode::kInvalidArgument,
          "scheduler.set_state", "a step count of ", count, " is out of range. The saved state is damaged.");
  scheduler.*detail::StepCount::kMember = static_cast<unsigned>(count);
}

}  // namespace hasten::optim

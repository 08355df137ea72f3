#include <algorithm>
#include <cmath>
#include <utility>

#include <torch/optim/optimizer.h>

#include <hasten/base/error.h>
#include <hasten/optim/reduce_on_plateau.h>

namespace hasten::optim {

ReduceOnPlateau::ReduceOnPlateau(torch::optim::Optimizer& optimizer, ReduceOnPlateauOptions options)
    : optimizer_(optimizer), options_(std::move(options)) {
  constexpr const char* kName = "ReduceOnPlateau";
  require(options_.factor > 0 && options_.factor < 1, ErrorCode::kInvalidArgument, kName, "factor is ",
          options_.factor, ", but must lie between 0 and 1.");
  require(options_.patience >= 0 && options_.cooldown >= 0, ErrorCode::kInvalidArgument, kName,
          "patience is ", options_.patience, " and cooldown ", options_.cooldown,
          ". Set both to 0 or more metrics.");
  require(std::isfinite(options_.threshold) && options_.eps >= 0, ErrorCode::kInvalidArgument, kName,
          "threshold is ", options_.threshold, " and eps ", options_.eps,
          ". Set a finite threshold, and an eps that is not negative.");
  const std::size_t groups = optimizer.param_groups().size();
  require(options_.minimum.size() == 1 || options_.minimum.size() == groups, ErrorCode::kInvalidArgument,
          kName, "minimum has ", options_.minimum.size(), " rates for ", groups,
          " groups. Give one for all, or one a group.");
}

bool ReduceOnPlateau::improves(double metric) const {
  if (std::isnan(metric)) return false;
  if (!state_.best) return true;
  const double sign = options_.mode == PlateauMode::kMin ? -1 : 1;
  const double bar = options_.threshold_mode == PlateauThreshold::kRelative
                         ? *state_.best * (1 + sign * options_.threshold)
                         : *state_.best + sign * options_.threshold;
  return sign * metric > sign * bar;
}

bool ReduceOnPlateau::step(double metric) {
  if (improves(metric)) {
    state_.best = metric;
    state_.failures = 0;
  } else {
    ++state_.failures;
  }
  if (state_.cooldown_left > 0) {
    --state_.cooldown_left;
    state_.failures = 0;
  }
  if (state_.failures <= options_.patience) return false;
  state_.cooldown_left = options_.cooldown;
  state_.failures = 0;
  return reduce();
}

bool ReduceOnPlateau::reduce() {
  bool reduced = false;
  auto& groups = optimizer_.param_groups();
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const double before = groups[i].options().get_lr();
    // A group that was added later shares the last minimum.
    const double minimum = options_.minimum[std::min(i, options_.minimum.size() - 1)];
    const double after = std::max(before * options_.factor, minimum);
    if (before - after <= options_.eps) continue;
    groups[i].options().set_lr(after);
    reduced = true;
  }
  return reduced;
}

}  // namespace hasten::optim

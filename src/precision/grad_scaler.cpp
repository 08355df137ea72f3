#include <cmath>
#include <map>
#include <tuple>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <hasten/base/error.h>
#include <hasten/precision/grad_scaler.h>

namespace hasten::precision {

GradScaler::GradScaler(const GradScalerOptions& options) : options_(options), scale_(options.init_scale) {
  require(std::isfinite(options.init_scale) && options.init_scale > 0, ErrorCode::kInvalidArgument,
          "GradScaler", "init_scale is ", options.init_scale, ", but must be positive and finite.");
  require(options.growth_factor > 1, ErrorCode::kInvalidArgument, "GradScaler", "growth_factor is ",
          options.growth_factor, ", but must be over 1.");
  require(options.backoff_factor > 0 && options.backoff_factor < 1, ErrorCode::kInvalidArgument, "GradScaler",
          "backoff_factor is ", options.backoff_factor, ", but must lie between 0 and 1.");
  require(options.growth_interval > 0, ErrorCode::kInvalidArgument, "GradScaler", "growth_interval is ",
          options.growth_interval, ", but must be positive.");
}

at::Tensor GradScaler::unscale(const std::vector<at::Tensor>& gradients, double scale,
                               const at::Device& device) {
  const at::NoGradGuard no_grad;
  const auto options = at::TensorOptions().dtype(at::kFloat);
  at::Tensor found = at::zeros({}, options.device(device));
  // The operator takes tensors of one device and one type a call.
  std::map<std::tuple<c10::DeviceType, c10::DeviceIndex, at::ScalarType>, std::vector<at::Tensor>> groups;
  for (const at::Tensor& gradient : gradients) {
    if (!gradient.defined()) continue;
    const at::Tensor dense = gradient.is_sparse() ? gradient._values() : gradient;
    groups[{dense.device().type(), dense.device().index(), dense.scalar_type()}].push_back(dense);
  }
  for (auto& [key, group] : groups) {
    const at::Device where = group.front().device();
    at::Tensor here = at::zeros({1}, options.device(where));
    // In double, since the inverse of a scale of 2^n is exact in any case and others lose least.
    const at::Tensor inverse = at::full({1}, 1.0 / scale, options.device(where));
    at::_amp_foreach_non_finite_check_and_unscale_(group, here, inverse);
    found.logical_or_(here.squeeze(0).to(device));
  }
  return found;
}

void GradScaler::update(bool found_nonfinite) {
  if (found_nonfinite) {
    scale_ *= options_.backoff_factor;
    growth_tracker_ = 0;
    return;
  }
  if (++growth_tracker_ < options_.growth_interval) return;
  growth_tracker_ = 0;
  // A scale that no float holds would turn every gradient into an infinity.
  const double grown = scale_ * options_.growth_factor;
  if (std::isfinite(static_cast<float>(grown))) scale_ = grown;
}

void GradScaler::load_state(const GradScalerState& state) {
  require(std::isfinite(state.scale) && state.scale > 0, ErrorCode::kInvalidArgument, "GradScaler",
          "a loaded scale is ", state.scale, ", but must be positive and finite.");
  scale_ = state.scale;
  growth_tracker_ = state.growth_tracker;
}

}  // namespace hasten::precision

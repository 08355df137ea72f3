#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace hasten::precision {

/// How the loss scale starts and moves. The defaults are PyTorch's.
struct GradScalerOptions {
  double init_scale = 65536.0;  ///< the first scale
  double growth_factor = 2.0;   ///< by which the scale grows after `growth_interval` good steps; over 1
  double backoff_factor = 0.5;  ///< by which it shrinks after an overflow; below 1
  std::int64_t growth_interval = 2000;
};

/// What a checkpoint keeps of a scaler.
struct GradScalerState {
  double scale = 0;
  std::int64_t growth_tracker = 0;
};

/// Keeps fp16 gradients in range: the loss is multiplied by a scale, the gradients are divided by it before
/// they are used, and a step whose gradients hold an infinity or NaN is left out and shrinks the scale. The
/// scale follows the rule of Micikevicius et al., "Mixed Precision Training" (2018), as PyTorch's GradScaler
/// does.
class GradScaler {
 public:
  /// Throws `kInvalidArgument` for factors outside their ranges.
  explicit GradScaler(const GradScalerOptions& options);

  /// The factor that the loss is to be multiplied by.
  [[nodiscard]] double scale() const noexcept { return scale_; }

  /// Divides the gradients by the scale that their loss was multiplied by, in place, and tells whether one
  /// holds an infinity or NaN, as a 0-d float tensor (0 or 1) on `device`. Does not wait for the device.
  /// Undefined and sparse entries are allowed; an empty list gives 0.
  [[nodiscard]] static at::Tensor unscale(const std::vector<at::Tensor>& gradients, double scale,
                                          const at::Device& device);

  /// Moves the scale after a step: shrinks it if a gradient was not finite, else grows it when its time has
  /// come.
  void update(bool found_nonfinite);

  [[nodiscard]] GradScalerState state() const { return {scale_, growth_tracker_}; }
  /// Throws `kInvalidArgument` for a scale that is not positive and finite.
  void load_state(const GradScalerState& state);

 private:
  GradScalerOptions options_;
  double scale_;
  std::int64_t growth_tracker_ = 0;
};

}  // namespace hasten::precision

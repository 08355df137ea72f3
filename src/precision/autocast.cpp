#include <ATen/autocast_mode.h>

#include <hasten/precision/autocast.h>

namespace hasten::precision {

Autocast::Autocast(c10::DeviceType device, Precision precision)
    : device_(device), active_(precision != Precision::kNo) {
  if (!active_) return;
  was_enabled_ = at::autocast::is_autocast_enabled(device);
  previous_dtype_ = at::autocast::get_autocast_dtype(device);
  at::autocast::set_autocast_dtype(device, precision == Precision::kBf16 ? at::kBFloat16 : at::kHalf);
  at::autocast::set_autocast_enabled(device, true);
  at::autocast::increment_nesting();
}

Autocast::~Autocast() {
  if (!active_) return;
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_, was_enabled_);
  at::autocast::set_autocast_dtype(device_, previous_dtype_);
}

void clear_cast_cache() {
  at::autocast::clear_cache();
}

at::Tensor to_fp32(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  const auto type = tensor.scalar_type();
  return type == at::kHalf || type == at::kBFloat16 ? tensor.to(at::kFloat) : tensor;
}

}  // namespace hasten::precision

#pragma once

#include <ATen/core/Tensor.h>

#include <hasten/config/precision.h>

namespace hasten::precision {

/// While it lives, operators on tensors of one kind of device run in a lower precision where LibTorch's
/// autocast holds that safe. Restores what was set before, also when an exception passes. Belongs to the
/// thread that made it.
class Autocast {
 public:
  /// With `Precision::kNo` nothing changes.
  Autocast(c10::DeviceType device, Precision precision);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  c10::DeviceType device_;
  bool active_;
  bool was_enabled_ = false;
  at::ScalarType previous_dtype_ = at::ScalarType::Float;
};

/// Forgets the low-precision copies of weights that autocast keeps. To be called whenever weights change
/// inside an autocast region, since the copies would be stale.
void clear_cast_cache();

/// The tensor in fp32 if it is fp16 or bf16, else as it is.
[[nodiscard]] at::Tensor to_fp32(const at::Tensor& tensor);

}  // namespace hasten::precision

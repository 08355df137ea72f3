#include <hasten/device/device.h>
#include <hasten/precision/fastest.h>

namespace hasten {

Precision fastest_precision() {
  for (const device::Backend* backend : device::backends())
    if (backend->count() > 0) return backend->has_fast_bf16() ? Precision::kBf16 : Precision::kNo;
  return Precision::kNo;
}

}  // namespace hasten

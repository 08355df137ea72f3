#pragma once

#include <hasten/config/precision.h>

namespace hasten {

/// The precision in which this machine trains fastest without a loss scale to mind: bf16 where the processor
/// multiplies bf16 in hardware (CPUs with AMX or AVX-512 BF16, CUDA devices from Ampere on), else none.
[[nodiscard]] Precision fastest_precision();

}  // namespace hasten

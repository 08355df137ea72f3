#pragma once

#include <c10/core/ScalarType.h>

#include <hasten/formats/dtype.h>

namespace hasten::device {

/// LibTorch's name for a file's element type. Throws `kUnavailable` for a type that LibTorch lacks.
[[nodiscard]] c10::ScalarType to_scalar_type(formats::DType dtype);

/// A file's name for LibTorch's element type. Throws `kUnavailable` for quantised and other types that files
/// lack.
[[nodiscard]] formats::DType to_dtype(c10::ScalarType type);

}  // namespace hasten::device

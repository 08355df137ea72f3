#pragma once

#include <string_view>

namespace hasten {

/// The type in which a prepared model computes. Its weights stay in the type they were built with.
enum class Precision {
  kNo,    ///< as the model was built, usually fp32
  kBf16,  ///< bfloat16 where it is safe (autocast)
  kFp16   ///< float16 where it is safe (autocast), with a gradient scaler
};

/// "no", "bf16", "fp16": Accelerate's names, as the command line and the environment take them.
[[nodiscard]] std::string_view name(Precision precision);

/// The precision of that name. Throws `kInvalidArgument`, listing the names; `where` says who gave it.
[[nodiscard]] Precision parse_precision(std::string_view text, std::string_view where);

}  // namespace hasten

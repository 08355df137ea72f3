#include <hasten/base/error.h>
#include <hasten/config/precision.h>

namespace hasten {

std::string_view name(Precision precision) {
  switch (precision) {
    case Precision::kNo:
      return "no";
    case Precision::kBf16:
      return "bf16";
    case Precision::kFp16:
      return "fp16";
  }
  return "no";
}

Precision parse_precision(std::string_view text, std::string_view where) {
  for (const Precision precision : {Precision::kNo, Precision::kBf16, Precision::kFp16})
    if (text == name(precision)) return precision;
  fail(ErrorCode::kInvalidArgument, "mixed_precision", where, " is '", text, "'. Use one of no, bf16, fp16.");
}

}  // namespace hasten

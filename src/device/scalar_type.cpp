#include <array>
#include <utility>

#include <hasten/base/error.h>
#include <hasten/device/scalar_type.h>

namespace hasten::device {
namespace {

using formats::DType;

constexpr std::array<std::pair<DType, c10::ScalarType>, 20> kPairs{{
    {DType::kBool, c10::ScalarType::Bool},
    {DType::kU8, c10::ScalarType::Byte},
    {DType::kI8, c10::ScalarType::Char},
    {DType::kF8E5M2, c10::ScalarType::Float8_e5m2},
    {DType::kF8E4M3, c10::ScalarType::Float8_e4m3fn},
    {DType::kF8E8M0, c10::ScalarType::Float8_e8m0fnu},
    {DType::kF8E4M3Fnuz, c10::ScalarType::Float8_e4m3fnuz},
    {DType::kF8E5M2Fnuz, c10::ScalarType::Float8_e5m2fnuz},
    {DType::kI16, c10::ScalarType::Short},
    {DType::kU16, c10::ScalarType::UInt16},
    {DType::kF16, c10::ScalarType::Half},
    {DType::kBF16, c10::ScalarType::BFloat16},
    {DType::kI32, c10::ScalarType::Int},
    {DType::kU32, c10::ScalarType::UInt32},
    {DType::kF32, c10::ScalarType::Float},
    {DType::kC64, c10::ScalarType::ComplexFloat},
    {DType::kF64, c10::ScalarType::Double},
    {DType::kI64, c10::ScalarType::Long},
    {DType::kU64, c10::ScalarType::UInt64},
    {DType::kC128, c10::ScalarType::ComplexDouble},
}};

}  // namespace

c10::ScalarType to_scalar_type(DType dtype) {
  for (const auto& [file, memory] : kPairs)
    if (file == dtype) return memory;
  fail(ErrorCode::kUnavailable, "to_scalar_type", "LibTorch has no type for ", formats::name_of(dtype), ".");
}

DType to_dtype(c10::ScalarType type) {
  for (const auto& [file, memory] : kPairs)
    if (memory == type) return file;
  fail(ErrorCode::kUnavailable, "to_dtype", "files cannot hold tensors of type ", c10::toString(type),
       ". Convert the tensor to another type first.");
}

}  // namespace hasten::device

#include <gtest/gtest.h>

#include <hasten/formats/dtype.h>

namespace hasten {
namespace {

using formats::DType;

TEST(DType, IsFoundByTheNameItGives) {
  for (int i = 0; i < static_cast<int>(DType::kC128); ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(formats::dtype_from_safetensors(formats::name_of(dtype)), dtype);
  }
  EXPECT_EQ(formats::dtype_from_safetensors("C128"), std::nullopt);
  EXPECT_EQ(formats::dtype_from_safetensors("F4"), std::nullopt);
  EXPECT_EQ(formats::dtype_from_safetensors(""), std::nullopt);
}

TEST(DType, CountsBytes) {
  EXPECT_EQ(formats::byte_count({2, 3}, DType::kF32), 24);
  EXPECT_EQ(formats::byte_count({}, DType::kC128), 16);
  EXPECT_EQ(formats::byte_count({0, 3}, DType::kF64), 0);
  EXPECT_EQ(formats::byte_count({3'000'000'000}, DType::kU8), 3'000'000'000);
}

TEST(DType, RefusesSizesThatOverflowOrAreNegative) {
  const std::int64_t big = std::int64_t{1} << 32;
  EXPECT_EQ(formats::byte_count({big, big}, DType::kU8), std::nullopt);
  EXPECT_EQ(formats::byte_count({big, big / 4}, DType::kF64), std::nullopt);
  EXPECT_EQ(formats::byte_count({-1}, DType::kU8), std::nullopt);
  EXPECT_EQ(formats::byte_count({-2, -3}, DType::kU8), std::nullopt);
  EXPECT_EQ(formats::byte_count({0, -1}, DType::kU8), std::nullopt);
  EXPECT_EQ(formats::byte_count({0, big, big}, DType::kU8), std::nullopt);
}

}  // namespace
}  // namespace hasten

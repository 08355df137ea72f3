#include <array>
#include <gtest/gtest.h>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <hasten/tree/bytes.h>

#include "support/errors.h"

namespace hasten {
namespace {

using test::error_of;
using tree::from_bytes;
using tree::to_bytes;

enum class Colour : std::uint8_t { kRed, kBlue };

struct Everything {
  bool flag = false;
  std::int64_t number = 0;
  Colour colour = Colour::kRed;
  std::string text;
  std::vector<bool> flags;
  std::array<double, 2> pair{};
  std::map<std::string, std::vector<std::int32_t>> lists;
  std::optional<std::pair<float, std::string>> maybe;
  std::tuple<std::unordered_map<std::int32_t, char>, std::vector<std::string>> rest;
  bool operator==(const Everything&) const = default;
};

TEST(Bytes, BringBackEveryKindOfValue) {
  const Everything value{true,
                         -7,
                         Colour::kBlue,
                         std::string("a\0b", 3),
                         {true, false},
                         {1.5, -0.0},
                         {{"x", {1, 2}}, {"", {}}},
                         std::pair(2.5F, "deep"),
                         {{{3, 'c'}}, {"", "last"}}};
  EXPECT_EQ(from_bytes<Everything>(to_bytes(value)), value);
  EXPECT_EQ(from_bytes<Everything>(to_bytes(Everything{})), Everything{});
}

TEST(Bytes, BringBackTensorsOfEveryTypeAndLayout) {
  for (const auto type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong, at::kByte, at::kBool,
                          at::kComplexFloat, at::kUInt16}) {
    const at::Tensor tensor = at::arange(6).to(type).view({2, 3});
    const auto back = from_bytes<at::Tensor>(to_bytes(tensor));
    EXPECT_EQ(back.scalar_type(), type);
    EXPECT_TRUE(back.equal(tensor));
  }
  const at::Tensor strided = at::arange(12).view({3, 4}).t().narrow(0, 1, 2);
  EXPECT_TRUE(from_bytes<at::Tensor>(to_bytes(strided)).equal(strided));
  const at::Tensor scalar = at::arange(3)[2];
  EXPECT_EQ(from_bytes<at::Tensor>(to_bytes(scalar)).dim(), 0);
  const at::Tensor empty = at::zeros({0, 3});
  EXPECT_EQ(from_bytes<at::Tensor>(to_bytes(empty)).sizes(), empty.sizes());
  EXPECT_FALSE(from_bytes<at::Tensor>(to_bytes(at::Tensor())).defined());
  EXPECT_EQ(error_of([] { (void)to_bytes(at::ones({2, 2}).to_sparse()); }).first,
            ErrorCode::kInvalidArgument);
}

TEST(Bytes, OfAnotherKindAreRefused) {
  using Value = std::pair<std::vector<std::string>, at::Tensor>;
  const std::string whole = to_bytes(Value{{"one", "two"}, at::arange(5)});
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_EQ(error_of([&] { (void)from_bytes<Value>(whole.substr(0, size)); }).first,
              ErrorCode::kCorruptData);
  EXPECT_EQ(error_of([&] { (void)from_bytes<Value>(whole + "x"); }).first, ErrorCode::kCorruptData);
  // Announced sizes beyond the message's own are found before memory is asked for.
  EXPECT_EQ(error_of([] { (void)from_bytes<std::string>(to_bytes(~std::uint64_t{0})); }).first,
            ErrorCode::kCorruptData);
  // Whatever bytes come: a value or an error.
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes = whole;
    for (int change = 0; change < 3; ++change) bytes[random() % bytes.size()] = static_cast<char>(random());
    try {
      (void)from_bytes<Value>(bytes);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCorruptData);
    }
  }
}

}  // namespace
}  // namespace hasten

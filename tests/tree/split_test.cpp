#include <gtest/gtest.h>
#include <map>
#include <string>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>

#include <hasten/tree/split.h>

#include "support/errors.h"

namespace hasten {
namespace {

using test::error_of;
using Names = std::vector<std::string>;

TEST(Split, GivesEachPartItsShareInOrder) {
  const Names names{"a", "b", "c", "d", "e"};
  EXPECT_EQ(tree::split(names, 0, 3), (Names{"a", "b"}));
  EXPECT_EQ(tree::split(names, 1, 3), (Names{"c", "d"}));
  EXPECT_EQ(tree::split(names, 2, 3), (Names{"e"}));
  EXPECT_EQ(tree::split(names, 2, 3, /*padded=*/true), (Names{"e", "e"}));
}

TEST(Split, CoversEverySampleOnceForEverySize) {
  for (std::int64_t size = 0; size < 12; ++size)
    for (std::int64_t parts = 1; parts < 6; ++parts) {
      std::vector<std::int64_t> all;
      std::int64_t longest = 0;
      for (std::int64_t part = 0; part < parts; ++part) {
        const at::Tensor mine = tree::split(at::arange(size), part, parts);
        for (std::int64_t i = 0; i < mine.size(0); ++i) all.push_back(mine[i].item<std::int64_t>());
        longest = std::max(longest, mine.size(0));
        const at::Tensor padded = tree::split(at::arange(size), part, parts, true);
        EXPECT_EQ(padded.size(0), size == 0 ? 0 : (size + parts - 1) / parts);
        EXPECT_TRUE(padded.narrow(0, 0, mine.size(0)).equal(mine));
        if (padded.size(0) > mine.size(0)) {
          EXPECT_EQ(padded[-1].item<std::int64_t>(), size - 1);
        }
      }
      std::vector<std::int64_t> expected;
      for (std::int64_t i = 0; i < size; ++i) expected.push_back(i);
      EXPECT_EQ(all, expected);
      EXPECT_LE(longest, (size + parts - 1) / parts);
    }
}

TEST(Split, TakesMapsAndStructsOfOneLength) {
  struct Batch {
    at::Tensor x;
    std::map<std::string, Names> labels;
  };
  const Batch batch{at::arange(6).view({3, 2}), {{"name", {"a", "b", "c"}}}};
  const Batch first = tree::split(batch, 0, 2);
  EXPECT_TRUE(first.x.equal(at::arange(4).view({2, 2})));
  EXPECT_EQ(first.labels.at("name"), (Names{"a", "b"}));
  const Batch last = tree::split(batch, 1, 2, true);
  EXPECT_TRUE(last.x.equal(at::tensor({4, 5, 4, 5}, at::kLong).view({2, 2})));
  EXPECT_EQ(last.labels.at("name"), (Names{"c", "c"}));
  const std::map<std::string, Names> uneven{{"a", {"x"}}, {"b", {}}};
  EXPECT_EQ(error_of([&] { (void)tree::split(uneven, 0, 2); }).first, ErrorCode::kMismatch);
  EXPECT_EQ(error_of([] { (void)tree::split(at::ones({}), 0, 2); }).first, ErrorCode::kInvalidArgument);
}

TEST(Concatenate, JoinsBatchesAlongADimension) {
  struct Batch {
    at::Tensor table;
    at::Tensor loss;
    std::string name;
  };
  const std::vector<Batch> batches{{at::ones({1, 2}), at::ones({}), "first"},
                                   {at::ones({3, 2}) * 2, at::ones({}) * 2, "second"}};
  const Batch joined = tree::concatenate(batches);
  EXPECT_EQ(joined.table.sizes(), (at::IntArrayRef{4, 2}));
  EXPECT_TRUE(joined.loss.equal(at::tensor({1.0F, 2.0F})));
  EXPECT_EQ(joined.name, "first");
  EXPECT_EQ(tree::concatenate(std::vector{at::ones({2, 1}), at::ones({2, 3})}, -1).sizes(),
            (at::IntArrayRef{2, 4}));
  const auto [code, text] =
      error_of([] { (void)tree::concatenate(std::vector{at::ones({2, 1}), at::ones({3, 3})}, 1); });
  EXPECT_EQ(code, ErrorCode::kMismatch);
  EXPECT_NE(text.find("[2, 1]"), std::string::npos) << text;
  EXPECT_NE(text.find("[3, 3]"), std::string::npos) << text;
  EXPECT_EQ(error_of([] { (void)tree::concatenate(std::vector<at::Tensor>()); }).first,
            ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace hasten

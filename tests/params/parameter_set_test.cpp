#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <hasten/base/error.h>
#include <hasten/params/parameter_set.h>

#include "support/errors.h"

namespace hasten {
namespace {

using test::message_of;

using params::ParameterSet;
using testing::HasSubstr;

at::Tensor parameter(at::IntArrayRef shape) {
  return at::zeros(shape).set_requires_grad(true);
}

TEST(ParameterSet, GroupsParametersByModule) {
  const ParameterSet set(
      {{"scale", parameter({1})}, {"a.weight", parameter({2})}, {"a.bias", parameter({2})}}, {});
  ASSERT_EQ(set.units().size(), 2U);
  EXPECT_EQ(set.units()[0].path, "");
  EXPECT_EQ(set.units()[1].path, "a");
  EXPECT_EQ(set.units()[1].parameters, (std::vector<std::size_t>{1, 2}));
  EXPECT_EQ(set.parameters()[2].unit, 1U);
}

TEST(ParameterSet, CountsATiedParameterOnce) {
  const at::Tensor shared = parameter({4, 2});
  const ParameterSet set({{"embedding.weight", shared}, {"head.weight", shared}}, {});
  EXPECT_EQ(set.parameters().size(), 1U);
  ASSERT_EQ(set.aliases().size(), 1U);
  EXPECT_EQ(set.aliases()[0], (std::pair<std::string, std::string>("head.weight", "embedding.weight")));
  // Values under either name fill it.
  set.load({{"head.weight", at::ones({4, 2})}}, "the test");
  EXPECT_EQ(shared.sum().item<double>(), 8);
}

TEST(ParameterSet, RefusesANameGivenTwice) {
  EXPECT_THROW(ParameterSet({{"a", parameter({1})}, {"a", parameter({1})}}, {}), Error);
  EXPECT_THROW(ParameterSet({{"a", parameter({1})}}, {{"a", at::ones({1})}}), Error);
}

TEST(ParameterSet, LoadsAllOrNothing) {
  const at::Tensor a = parameter({2});
  const at::Tensor b = parameter({3});
  const ParameterSet set({{"a", a}, {"b", b}}, {{"count", at::zeros({})}});
  const auto load = [&](params::NamedTensors values) {
    return message_of([&] { set.load(values, "file.safetensors"); });
  };
  EXPECT_THAT(load({{"a", at::ones({2})}, {"b", at::ones({4})}, {"count", at::ones({})}}),
              testing::AllOf(HasSubstr("'b' has shape [4] in file.safetensors"), HasSubstr("[3]")));
  EXPECT_THAT(load({{"a", at::ones({2})}, {"c", at::ones({3})}}),
              testing::AllOf(HasSubstr("Missing in it: b, count"), HasSubstr("unknown to this model: c")));
  EXPECT_EQ(a.sum().item<double>(), 0) << "a failed load must change nothing";
  set.load({{"a", at::ones({2})}, {"b", at::ones({3})}, {"count", at::ones({})}}, "file.safetensors");
  EXPECT_EQ(a.sum().item<double>(), 2);
  EXPECT_TRUE(a.requires_grad());
}

TEST(ParameterSet, KeepsATensorsIdentityWhenItsLayoutChanges) {
  const at::Tensor weight =
      at::arange(2 * 3 * 3 * 3).to(at::kFloat).view({2, 3, 3, 3}).set_requires_grad(true);
  const at::Tensor before = weight.detach().clone();
  const ParameterSet set({{"conv.weight", weight}}, {});
  EXPECT_TRUE(set.has_convolutions());
  set.set_channels_last(true);
  EXPECT_TRUE(weight.is_contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_TRUE(weight.equal(before));
  EXPECT_NE(set.find(weight), nullptr);
  set.set_channels_last(false);
  EXPECT_TRUE(weight.is_contiguous());
}

TEST(ParameterSet, LeavesDepthwiseConvolutionsAsTheyAre) {
  const ParameterSet set(
      {{"depthwise.weight", parameter({8, 1, 3, 3})}, {"linear.weight", parameter({4, 4})}}, {});
  EXPECT_FALSE(set.has_convolutions());
}

TEST(ParameterSet, ListsWhatTrains) {
  const ParameterSet set({{"a", parameter({1})}, {"frozen", at::ones({1})}}, {});
  EXPECT_EQ(set.trainable().size(), 1U);
  EXPECT_EQ(set.find(at::ones({1})), nullptr);
}

}  // namespace
}  // namespace hasten

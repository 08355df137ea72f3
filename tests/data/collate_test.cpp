#include <gtest/gtest.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <hasten/base/error.h>
#include <hasten/data/collate.h>

namespace hasten {
namespace {

enum class Kind { kA, kB };

struct Same {
  at::Tensor x;
  std::optional<at::Tensor> mask;
};
struct Mixed {
  at::Tensor x;
  std::string name;
  float weight = 0;
};

static_assert(std::is_same_v<data::Collated<at::Tensor>, at::Tensor>);
static_assert(std::is_same_v<data::Collated<bool>, at::Tensor>);
static_assert(std::is_same_v<data::Collated<std::pair<at::Tensor, int>>, std::pair<at::Tensor, at::Tensor>>);
static_assert(std::is_same_v<data::Collated<std::tuple<float, std::string>>,
                             std::tuple<at::Tensor, std::vector<std::string>>>);
static_assert(std::is_same_v<data::Collated<Same>, Same>);
static_assert(
    std::is_same_v<data::Collated<Mixed>, std::tuple<at::Tensor, std::vector<std::string>, at::Tensor>>);
static_assert(std::is_same_v<data::Collated<std::vector<int>>, at::Tensor>);
static_assert(std::is_same_v<data::Collated<std::array<at::Tensor, 2>>, std::array<at::Tensor, 2>>);

TEST(Stack, GivesTensorsANewFirstDimension) {
  const at::Tensor batch = data::Stack()(std::vector{at::zeros({2, 3}), at::full({2, 3}, 1)});
  EXPECT_EQ(batch.sizes(), (std::vector<std::int64_t>{2, 2, 3}));
  EXPECT_EQ(batch.sum().item<double>(), 6);
}

TEST(Stack, MakesTensorsOfNumbersInTheirKind) {
  EXPECT_EQ(data::Stack()(std::vector<int>{1, 2}).scalar_type(), at::kLong);
  EXPECT_EQ(data::Stack()(std::vector<float>{1, 2}).scalar_type(), at::kFloat);
  EXPECT_EQ(data::Stack()(std::vector<double>{1, 2}).scalar_type(), at::kDouble);
  const at::Tensor flags = data::Stack()(std::vector<bool>{true, false, true});
  EXPECT_EQ(flags.scalar_type(), at::kBool);
  EXPECT_EQ(flags.sum().item<std::int64_t>(), 2);
  EXPECT_EQ(data::Stack()(std::vector<Kind>{Kind::kB, Kind::kA})[0].item<std::int64_t>(), 1);
}

TEST(Stack, JoinsTheFieldsOfStructsAndTuples) {
  const auto [x, names, weights] =
      data::Stack()(std::vector<Mixed>{{at::zeros({2}), "a", 0.5F}, {at::full({2}, 1), "b", 1.5F}});
  EXPECT_EQ(x.sizes(), (std::vector<std::int64_t>{2, 2}));
  EXPECT_EQ(names, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(weights.sum().item<double>(), 2);
  const Same same =
      data::Stack()(std::vector<Same>{{at::zeros({2}), at::zeros({1})}, {at::zeros({2}), at::zeros({1})}});
  EXPECT_EQ(same.mask->sizes(), (std::vector<std::int64_t>{2, 1}));
}

TEST(Stack, JoinsContainersPlaceByPlace) {
  const at::Tensor rows = data::Stack()(std::vector<std::vector<int>>{{1, 2, 3}, {4, 5, 6}});
  EXPECT_TRUE(rows.equal(at::arange(1, 7).view({2, 3})));
  const auto places = data::Stack()(std::vector<std::vector<at::Tensor>>{{at::zeros({1}), at::zeros({2})},
                                                                         {at::zeros({1}), at::zeros({2})}});
  ASSERT_EQ(places.size(), 2U);
  EXPECT_EQ(places[1].sizes(), (std::vector<std::int64_t>{2, 2}));
  const auto map =
      data::Stack()(std::vector<std::map<std::string, int>>{{{"a", 1}, {"b", 2}}, {{"a", 3}, {"b", 4}}});
  EXPECT_EQ(map.at("b").sum().item<std::int64_t>(), 6);
}

template <class Sample>
std::string refusal(std::vector<Sample> samples) {
  try {
    (void)data::Stack()(std::move(samples));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kMismatch);
    return error.what();
  }
  return {};
}

TEST(Stack, RefusesSamplesThatDoNotFitTogether) {
  const std::string shapes = refusal(std::vector{at::zeros({2, 3}), at::zeros({2, 3}), at::zeros({3})});
  EXPECT_NE(shapes.find("[2, 3] at 0 and [3] at 2"), std::string::npos) << shapes;
  EXPECT_NE(refusal(std::vector{at::zeros({1}), at::Tensor()}).find("sample 1"), std::string::npos);
  EXPECT_NE(refusal(std::vector<std::vector<int>>{{1}, {1, 2}}).find("1 at 0 and 2 at 1"), std::string::npos);
  EXPECT_NE(refusal(std::vector<std::map<int, int>>{{{1, 1}}, {{2, 1}}}).find("sample 1"), std::string::npos);
  EXPECT_NE(refusal(std::vector<std::optional<int>>{1, std::nullopt}).find("1 of the 2"), std::string::npos);
}

}  // namespace
}  // namespace hasten

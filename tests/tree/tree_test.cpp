#include <gtest/gtest.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>

#include <hasten/tree/tree.h>

namespace hasten {
namespace {

struct Inner {
  at::Tensor mask;
  std::string name;
};
struct Batch {
  at::Tensor x;
  std::map<std::string, at::Tensor> extra;
  Inner inner;
  std::vector<std::pair<at::Tensor, int>> pairs;
  std::optional<at::Tensor> weight;
  double scale = 1;
};

class Opaque {
 public:
  explicit Opaque(at::Tensor t) : tensor(std::move(t)) {}
  at::Tensor tensor;
};

Batch make_batch(double value) {
  const auto t = [&](int64_t n) { return at::full({n}, value); };
  return {t(1), {{"a", t(2)}, {"b", t(3)}}, {t(4), "left as it is"}, {{t(5), 7}}, t(6), 0.5};
}

}  // namespace

template <>
struct tree::Fields<Opaque> {
  static auto tie(Opaque& value) { return std::tie(value.tensor); }
  static auto tie(const Opaque& value) { return std::tie(value.tensor); }
};

namespace {

TEST(Tree, ReachesEveryTensorInOrder) {
  const Batch batch = make_batch(1);
  std::vector<int64_t> sizes;
  tree::for_each(batch, [&](const at::Tensor& t) { sizes.push_back(t.numel()); });
  EXPECT_EQ(sizes, (std::vector<int64_t>{1, 2, 3, 4, 5, 6}));
}

TEST(Tree, MapsTensorsAndLeavesTheRest) {
  const Batch doubled = tree::map(make_batch(1), [](const at::Tensor& t) { return t * 2; });
  EXPECT_EQ(doubled.extra.at("b").sum().item<double>(), 6);
  EXPECT_EQ(doubled.inner.name, "left as it is");
  EXPECT_EQ(doubled.pairs[0].second, 7);
  EXPECT_EQ(doubled.scale, 0.5);
}

TEST(Tree, UnflattensWhatItFlattened) {
  const Batch batch = make_batch(3);
  std::vector<at::Tensor> tensors = tree::flatten(batch);
  ASSERT_EQ(tensors.size(), 6U);
  tensors[0] = at::ones({9});
  const Batch back = tree::unflatten(batch, tensors);
  EXPECT_EQ(back.x.numel(), 9);
  EXPECT_TRUE(back.weight->is_same(*batch.weight));
}

TEST(Tree, ZipsTensorsThatStandAtOnePlace) {
  const Batch joined = tree::zip(std::vector{make_batch(1), make_batch(2)},
                                 [](const std::vector<at::Tensor>& column) { return at::cat(column); });
  EXPECT_EQ(joined.x.sizes(), (std::vector<int64_t>{2}));
  EXPECT_EQ(joined.inner.mask.sum().item<double>(), 4 * 1 + 4 * 2);
}

TEST(Tree, TakesATypeThatIsTaught) {
  Opaque value(at::ones({2}));
  value = tree::map(value, [](const at::Tensor& t) { return t + 1; });
  EXPECT_EQ(value.tensor.sum().item<double>(), 4);
}

TEST(Tree, TakesTuplesAndTensorsThemselves) {
  const auto pair =
      tree::map(std::make_tuple(at::ones({2}), std::string("s")), [](const auto& t) { return -t; });
  EXPECT_EQ(std::get<0>(pair).sum().item<double>(), -2);
  EXPECT_EQ(tree::first_tensor(at::ones({4})).numel(), 4);
  EXPECT_FALSE(tree::first_tensor(std::string("none")).defined());
}

}  // namespace
}  // namespace hasten

// LibTorch's own datasets, whose headers the library never includes.
#include <gtest/gtest.h>

#include <torch/data/datasets/base.h>
#include <torch/data/datasets/map.h>
#include <torch/data/datasets/shared.h>
#include <torch/data/datasets/tensor.h>
#include <torch/data/transforms/lambda.h>
#include <torch/data/transforms/stack.h>

#include <hasten/data/loader.h>

namespace hasten {
namespace {

using torch::data::Example;
using torch::data::TensorExample;

struct Squares : torch::data::datasets::Dataset<Squares> {
  Example<> get(std::size_t index) override {
    const auto value = static_cast<double>(index);
    return {torch::full({2}, value), torch::full({}, value * value)};
  }
  std::optional<std::size_t> size() const override { return 10; }
};

template <class Loader>
void expect_squares(Loader& loader, double scale) {
  std::int64_t next = 0;
  for (auto& [data, target] : loader) {
    EXPECT_EQ(data.dim(), 2);
    EXPECT_EQ(target.dim(), 1);
    for (std::int64_t row = 0; row < data.size(0); ++row, ++next) {
      EXPECT_EQ(data[row][1].template item<double>(), scale * static_cast<double>(next));
      EXPECT_EQ(target[row].template item<double>(), static_cast<double>(next * next));
    }
  }
  EXPECT_EQ(next, 10);
}

TEST(LibTorchDatasets, AreReadAsTheyAre) {
  for (const int workers : {0, 2}) {
    data::Loader loader(Squares(), {.batch_size = 4, .workers = workers});
    static_assert(std::is_same_v<decltype(loader)::Batch, Example<>>);
    expect_squares(loader, 1);
  }
}

TEST(LibTorchDatasets, AreReadThroughTheirTransforms) {
  const auto doubled = torch::data::transforms::Lambda<Example<>>(
      [](Example<> example) { return Example<>(example.data * 2, example.target); });
  for (const int workers : {0, 2}) {
    data::Loader samples(Squares().map(doubled), {.batch_size = 4, .workers = workers});
    expect_squares(samples, 2);
    data::Loader batches(Squares().map(doubled).map(torch::data::transforms::Stack<>()),
                         {.batch_size = 3, .workers = workers});
    expect_squares(batches, 2);
  }
}

TEST(LibTorchDatasets, WithoutTargetsGiveTensors) {
  const torch::data::datasets::TensorDataset dataset(torch::arange(12).view({6, 2}));
  for (const int workers : {0, 2}) {
    data::Loader loader(dataset, {.batch_size = 4, .workers = workers});
    static_assert(std::is_same_v<decltype(loader)::Batch, at::Tensor>);
    std::vector<at::Tensor> batches;
    for (auto& batch : loader) batches.push_back(batch);
    EXPECT_TRUE(torch::cat(batches).equal(dataset.tensor));
    // A finished batch without a target is a tensor too.
    auto stacked =
        torch::data::datasets::TensorDataset(dataset).map(torch::data::transforms::Stack<TensorExample>());
    data::Loader ready(stacked, {.batch_size = 6, .workers = workers});
    for (at::Tensor& batch : ready) EXPECT_TRUE(batch.equal(dataset.tensor));
  }
}

TEST(LibTorchDatasets, CanBeShared) {
  auto shared = torch::data::datasets::make_shared_dataset<Squares>();
  data::Loader loader(shared, {.batch_size = 4, .workers = 2});
  expect_squares(loader, 1);
  Squares squares;
  data::Loader by_reference(std::ref(squares), {.batch_size = 5});
  expect_squares(by_reference, 1);
}

}  // namespace
}  // namespace hasten

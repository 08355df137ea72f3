#include <gtest/gtest.h>
#include <map>

#include <ATen/record_function.h>
#include <torch/optim/sgd.h>

#include "train/support.h"

/// What an accelerator would have to wait for: reads of the device by the host, which on any device go
/// through one operator, and copies that carry a tensor's values away.
namespace hasten {
namespace {

using test::Mlp;
using test::Rank;
using test::run_ranks;
using torch::nn::functional::cross_entropy;

/// Counts how often operators are called while it lives.
class OperatorCounts {
 public:
  OperatorCounts() {
    counts().clear();
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback([](const at::RecordFunction& function) {
      ++counts()[function.name()];
      return std::unique_ptr<at::ObserverContext>();
    }));
  }
  ~OperatorCounts() { at::removeCallback(handle_); }
  OperatorCounts(const OperatorCounts&) = delete;
  OperatorCounts& operator=(const OperatorCounts&) = delete;

  [[nodiscard]] int reads() const { return counts()["aten::_local_scalar_dense"]; }
  [[nodiscard]] int of(const std::string& name) const { return counts()[name]; }

 private:
  static std::map<std::string, int>& counts() {
    static thread_local std::map<std::string, int> instance;
    return instance;
  }
  at::CallbackHandle handle_ = 0;
};

/// Reads of the host in `updates` updates of windows of two, clipped, with a schedule and a metric.
int reads_in(Accelerator& accelerator, int updates) {
  Mlp net(8, 16, 3);
  // The CPU's fused Adam reads its step counts, which no other device's does.
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  optim::CosineWithWarmup schedule(sgd, {.warmup_steps = 2, .total_steps = 100});
  auto [model, optimizer, scheduler] = accelerator.prepare(net, sgd, schedule);
  const at::Tensor x = test::wave({4, 8}, 1.0, 0.0).to(at::kFloat);
  const at::Tensor y = at::arange(4) % 3;
  metrics::Accuracy accuracy;
  const auto step = [&, &model = model, &optimizer = optimizer, &scheduler = scheduler] {
    auto window = accelerator.accumulate(model);
    const at::Tensor out = model(x);
    const at::Tensor loss = cross_entropy(out, y);
    accelerator.backward(loss);
    accelerator.clip_grad_norm_(model, 1.0);
    accelerator.update(accuracy, out, y);
    optimizer.step();
    scheduler.step();
    optimizer.zero_grad();
    accelerator.log({{"loss", loss}});
  };
  for (int i = 0; i < 4; ++i) step();
  const OperatorCounts counts;
  for (int i = 0; i < 2 * updates; ++i) step();
  const int reads = counts.reads();
  (void)accelerator.compute(accuracy);
  EXPECT_EQ(counts.reads(), reads) << "a metric is brought to the host in one copy";
  EXPECT_GT(counts.of("aten::addmm"), 0) << "operators are counted at all";
  return reads;
}

TEST(Reads, OfTheDeviceAreNoMoreThanTheArithmeticNeeds) {
  for (const int processes : {1, 2})
    run_ranks(
        processes,
        [](Rank& rank) {
          test::join(rank);
          {
            Accelerator accelerator({.gradient_accumulation_steps = 2, .progress = false});
            EXPECT_EQ(reads_in(accelerator, 10), 0);
          }
          Accelerator scaled(
              {.mixed_precision = Precision::kFp16, .gradient_accumulation_steps = 2, .progress = false});
          EXPECT_EQ(reads_in(scaled, 10), 10) << "whether gradients are finite, once an update";
        },
        {.stores = 1});
}

}  // namespace
}  // namespace hasten

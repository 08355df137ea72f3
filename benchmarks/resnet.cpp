// ResNet-18 on 32x32 images, in batches of 64 for each process; peers/resnet_cifar.py is the same in Python.
//
//   bench_resnet fp32|bf16 [steps]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string_view>
#include <vector>

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/stack.h>
#include <torch/optim/sgd.h>

#include <hasten/hasten.h>
#include <hasten/models/resnet.h>

#include "formulas.h"

int main(int argc, char** argv) try {
  namespace formulas = benchmark_formulas;
  using Clock = std::chrono::steady_clock;
  constexpr std::int64_t kBatch = 64;
  constexpr std::size_t kWarmUp = 3;
  const std::string_view precision = argc > 1 ? argv[1] : "";
  const std::size_t steps = argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 10;
  if ((precision != "fp32" && precision != "bf16") || steps == 0) {
    std::cerr << "bench_resnet fp32|bf16 [steps]\n";
    return 2;
  }

  hasten::Accelerator accelerator(
      {.mixed_precision = precision == "bf16" ? hasten::Precision::kBf16 : hasten::Precision::kNo,
       .cpu = true,
       .progress = false});
  const std::int64_t images_a_step = kBatch * accelerator.num_processes();
  hasten::models::ResNet18 net({.classes = 10, .small_images = true});
  formulas::init_parameters(*net);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9).weight_decay(5e-4));
  hasten::data::Loader batches(hasten::data::tensors(formulas::inputs({images_a_step * 4, 3, 32, 32}),
                                                     formulas::labels(images_a_step * 4)),
                               {.batch_size = kBatch});
  auto [model, optimizer, loader] = accelerator.prepare(net, sgd, batches);
  model->train();

  std::vector<double> seconds;
  std::vector<at::Tensor> losses;
  while (seconds.size() < kWarmUp + steps) {
    auto start = Clock::now();
    for (auto& [x, y] : loader) {
      auto micro_batch = accelerator.accumulate(model);
      auto loss = at::cross_entropy_loss(model(x), y);
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
      losses.push_back(loss.detach());
      const auto now = Clock::now();
      seconds.push_back(std::chrono::duration<double>(now - start).count());
      start = now;
      if (seconds.size() == kWarmUp + steps) break;
    }
  }

  const at::Tensor all = accelerator.reduce(at::stack(losses), hasten::comm::ReduceOp::kMean);
  if (accelerator.is_main_process()) {
    std::vector<double> timed(seconds.begin() + kWarmUp, seconds.end());
    std::nth_element(timed.begin(), timed.begin() + static_cast<std::ptrdiff_t>(timed.size() / 2),
                     timed.end());
    std::printf(R"({"rate": %.5g, "losses": [)",
                static_cast<double>(images_a_step) / timed[timed.size() / 2]);
    for (std::int64_t i = 0; i < all.size(0); ++i)
      std::printf("%s%.7g", i == 0 ? "" : ", ", all[i].item<double>());
    std::printf("]}\n");
  }
  accelerator.end_training();
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}

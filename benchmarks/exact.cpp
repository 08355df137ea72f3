// What accumulation, loss scaling, clipping and metrics cost, in instructions: under valgrind's callgrind,
//
//   bench_exact hasten PRECISION EPOCHS     the loop as a user of hasten writes it
//   bench_exact libtorch PRECISION EPOCHS   a loop written by hand that does the same work
//
// PRECISION is fp32 or fp16; in fp16 both scale the loss. benchmarks/run.py takes the difference of two
// numbers of epochs, which leaves out the start of the program.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string_view>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/clamp_max.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include <hasten/hasten.h>

#include "formulas.h"

namespace {

namespace formulas = benchmark_formulas;

constexpr std::int64_t kBatch = 32;
constexpr std::int64_t kSteps = 100;  // micro-batches in an epoch
constexpr std::int64_t kWindow = 2;
constexpr double kLearningRate = 1e-3;
constexpr double kMaxNorm = 1.0;
constexpr double kScale = 65536;

struct Work {
  torch::nn::Sequential net{torch::nn::Linear(64, 128), torch::nn::ReLU(), torch::nn::Linear(128, 128),
                            torch::nn::ReLU(), torch::nn::Linear(128, 10)};
  at::Tensor inputs = formulas::inputs({kBatch * kSteps, 64});
  at::Tensor labels = formulas::labels(kBatch * kSteps);

  Work() { formulas::init_parameters(*net); }
};

double with_hasten(bool fp16, int epochs) {
  hasten::Accelerator accelerator(
      {.mixed_precision = fp16 ? hasten::Precision::kFp16 : hasten::Precision::kNo,
       .gradient_accumulation_steps = kWindow,
       .cpu = true,
       .progress = false});
  Work work;
  torch::optim::Adam adam(work.net->parameters(), torch::optim::AdamOptions(kLearningRate));
  hasten::data::Loader batches(hasten::data::tensors(work.inputs, work.labels), {.batch_size = kBatch});
  auto [model, optimizer, loader] = accelerator.prepare(work.net, adam, batches);
  hasten::metrics::Accuracy accuracy;
  for (int epoch = 0; epoch < epochs; ++epoch)
    for (auto& [x, y] : loader) {
      auto window = accelerator.accumulate(model);
      const at::Tensor scores = model(x);
      accelerator.backward(at::cross_entropy_loss(scores, y));
      if (accelerator.sync_gradients()) accelerator.clip_grad_norm_(model, kMaxNorm);
      accelerator.update(accuracy, scores, y);
      optimizer.step();
      optimizer.zero_grad();
    }
  return accelerator.compute(accuracy) + formulas::absolute_sum(*work.net);
}

double by_hand(bool fp16, int epochs) {
  Work work;
  const std::vector<at::Tensor> parameters = work.net->parameters();
  std::vector<at::Tensor> averages, square_averages, steps;
  at::Tensor step = at::zeros({}, at::kFloat);
  for (const at::Tensor& parameter : parameters) {
    averages.push_back(at::zeros_like(parameter));
    square_averages.push_back(at::zeros_like(parameter));
    steps.push_back(step);
  }
  at::Tensor correct = at::zeros({2}, at::kDouble);
  const auto weight = at::full({}, (fp16 ? kScale : 1) / kWindow);
  for (int epoch = 0; epoch < epochs; ++epoch)
    for (std::int64_t i = 0; i < kSteps; ++i) {
      const at::Tensor x = work.inputs.narrow(0, i * kBatch, kBatch);
      const at::Tensor y = work.labels.narrow(0, i * kBatch, kBatch);
      if (fp16) {
        at::autocast::set_autocast_dtype(at::kCPU, at::kHalf);
        at::autocast::set_autocast_enabled(at::kCPU, true);
        at::autocast::increment_nesting();
      }
      at::Tensor scores = work.net->forward(x);
      if (fp16) {
        if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
        at::autocast::set_autocast_enabled(at::kCPU, false);
        scores = scores.to(at::kFloat);
      }
      at::cross_entropy_loss(scores, y).backward(weight);
      const c10::NoGradGuard no_grad;
      const at::Tensor hits = scores.argmax(-1).eq(y);
      correct = correct + at::stack({hits.sum(at::kDouble), at::full({}, 1.0 * kBatch, at::kDouble)});
      if (i % kWindow != kWindow - 1) continue;
      std::vector<at::Tensor> gradients;
      for (const at::Tensor& parameter : parameters) gradients.push_back(parameter.grad());
      bool finite = true;
      if (fp16) {
        at::Tensor found = at::zeros({1});
        at::_amp_foreach_non_finite_check_and_unscale_(gradients, found, at::full({1}, 1 / kScale));
        finite = found.item<float>() == 0;
      }
      const at::Tensor norm = at::linalg_vector_norm(at::stack(at::_foreach_norm(gradients, 2)), 2);
      at::_foreach_mul_(gradients, at::clamp_max(kMaxNorm / (norm + 1e-6), 1.0));
      if (finite) {
        *step.mutable_data_ptr<float>() += 1;
        at::_fused_adam_(parameters, gradients, averages, square_averages, {}, steps, kLearningRate, 0.9,
                         0.999,
                         /*weight_decay=*/0, /*eps=*/1e-8, /*amsgrad=*/false, /*maximize=*/false);
      }
      for (const at::Tensor& parameter : parameters) parameter.mutable_grad().reset();
    }
  return (correct[0] / correct[1]).item<double>() + formulas::absolute_sum(*work.net);
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string_view way = argc == 4 ? argv[1] : "";
  const std::string_view precision = argc == 4 ? argv[2] : "";
  if ((way != "hasten" && way != "libtorch") || (precision != "fp32" && precision != "fp16")) {
    std::cerr << "bench_exact hasten|libtorch fp32|fp16 EPOCHS\n";
    return 2;
  }
  const int epochs = std::atoi(argv[3]);
  const bool fp16 = precision == "fp16";
  std::printf("{\"result\": %.9g}\n", way == "hasten" ? with_hasten(fp16, epochs) : by_hand(fp16, epochs));
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}

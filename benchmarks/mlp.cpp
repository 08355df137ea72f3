// A small network, so that a step's time is that of the loop around it. peers/mlp.py is the same in Python.
//
//   bench_mlp hasten     one turn; also the program of several processes, under `hasten launch`
//   bench_mlp libtorch   one turn of a loop written by hand with the same fused step
//   bench_mlp added      what hasten adds to that loop, both taking turns epoch by epoch
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <string_view>
#include <vector>

#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/cross_entropy_loss.h>
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
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kBatch = 32;
constexpr std::int64_t kSteps = 200;  // an epoch
constexpr int kEpochs = 10;           // after one that is not timed
constexpr double kLearningRate = 1e-3;

torch::nn::Sequential make_model() {
  torch::nn::Sequential model(torch::nn::Linear(64, 128), torch::nn::ReLU(), torch::nn::Linear(128, 128),
                              torch::nn::ReLU(), torch::nn::Linear(128, 10));
  formulas::init_parameters(*model);
  return model;
}

struct Data {
  at::Tensor inputs;
  at::Tensor labels;

  explicit Data(std::int64_t processes)
      : inputs(formulas::inputs({kBatch * kSteps * processes, 64})),
        labels(formulas::labels(kBatch * kSteps * processes)) {}
};

/// The loop as a user of hasten writes it.
class WithHasten {
 public:
  WithHasten()
      : accelerator_({.cpu = true, .progress = false}),
        data_(accelerator_.num_processes()),
        net_(make_model()),
        adam_(net_->parameters(), torch::optim::AdamOptions(kLearningRate)),
        batches_(hasten::data::tensors(data_.inputs, data_.labels), {.batch_size = kBatch}),
        prepared_(accelerator_.prepare(net_, adam_, batches_)) {}

  /// Returns the last step's loss on this process.
  at::Tensor epoch() {
    auto& [model, optimizer, loader] = prepared_;
    at::Tensor loss;
    for (auto& [x, y] : loader) {
      auto micro_batch = accelerator_.accumulate(model);
      loss = at::cross_entropy_loss(model(x), y);
      accelerator_.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
    }
    return accelerator_.reduce(loss.detach(), hasten::comm::ReduceOp::kMean);
  }

  hasten::Accelerator& accelerator() { return accelerator_; }
  torch::nn::Sequential& net() { return net_; }
  const Data& data() const { return data_; }

 private:
  hasten::Accelerator accelerator_;
  Data data_;
  torch::nn::Sequential net_;
  torch::optim::Adam adam_;
  hasten::data::Loader<hasten::data::TensorDataset<2>> batches_;
  decltype(std::declval<hasten::Accelerator&>().prepare(net_, adam_, batches_)) prepared_;
};

/// The least that does the same work.
class ByHand {
 public:
  ByHand() : data_(1), net_(make_model()), parameters_(net_->parameters()) {
    for (const at::Tensor& parameter : parameters_) {
      averages_.push_back(at::zeros_like(parameter));
      square_averages_.push_back(at::zeros_like(parameter));
      steps_.push_back(step_);
    }
  }

  at::Tensor epoch() {
    at::Tensor loss;
    for (std::int64_t step = 0; step < kSteps; ++step) {
      const at::Tensor x = data_.inputs.narrow(0, step * kBatch, kBatch);
      const at::Tensor y = data_.labels.narrow(0, step * kBatch, kBatch);
      loss = at::cross_entropy_loss(net_->forward(x), y);
      loss.backward();
      const c10::NoGradGuard no_grad;
      for (const at::Tensor& parameter : parameters_) gradients_.push_back(parameter.grad());
      *step_.mutable_data_ptr<float>() += 1;
      at::_fused_adam_(parameters_, gradients_, averages_, square_averages_, {}, steps_, kLearningRate, 0.9,
                       0.999, /*weight_decay=*/0, /*eps=*/1e-8, /*amsgrad=*/false, /*maximize=*/false);
      gradients_.clear();
      for (at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
    }
    return loss.detach();
  }

  torch::nn::Sequential& net() { return net_; }
  const Data& data() const { return data_; }

 private:
  Data data_;
  torch::nn::Sequential net_;
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> gradients_;
  std::vector<at::Tensor> averages_;
  std::vector<at::Tensor> square_averages_;
  at::Tensor step_ = at::zeros({}, at::kFloat);
  std::vector<at::Tensor> steps_;  // the same for each parameter
};

template <class Loop>
double seconds_of_epoch(Loop& loop, at::Tensor& loss) {
  const auto start = Clock::now();
  loss = loop.epoch();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// One warm-up epoch and the timed ones; prints what peers/mlp.py prints.
template <class Loop>
void one_turn(Loop& loop, bool print) {
  at::Tensor loss;
  seconds_of_epoch(loop, loss);
  double seconds = 0;
  for (int epoch = 0; epoch < kEpochs; ++epoch) seconds += seconds_of_epoch(loop, loss);
  const c10::NoGradGuard no_grad;
  const at::Tensor over_all =
      at::cross_entropy_loss(loop.net()->forward(loop.data().inputs), loop.data().labels);
  if (print)
    std::printf(R"({"rate": %.6g, "last_step_loss": %.9g, "dataset_loss": %.9g, "abs_sum": %.9g})"
                "\n",
                kEpochs * kSteps / seconds, loss.item<double>(), over_all.item<double>(),
                formulas::absolute_sum(*loop.net()));
}

/// Microseconds a step of both loops and of their difference: median, first and third quartile of the rounds.
void added() {
  constexpr int kRounds = 41;
  WithHasten with_hasten;
  ByHand by_hand;
  std::array<std::vector<double>, 3> times;
  at::Tensor loss;
  seconds_of_epoch(with_hasten, loss);
  seconds_of_epoch(by_hand, loss);
  for (int round = 0; round < kRounds; ++round) {
    // The one that begins changes, lest one side always follow the other's cache.
    double ours = 0;
    if (round % 2 == 0) ours = seconds_of_epoch(with_hasten, loss);
    const double theirs = seconds_of_epoch(by_hand, loss);
    if (round % 2 != 0) ours = seconds_of_epoch(with_hasten, loss);
    times[0].push_back(ours / kSteps * 1e6);
    times[1].push_back(theirs / kSteps * 1e6);
    times[2].push_back((ours - theirs) / kSteps * 1e6);
  }
  const auto quartiles = [](std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return std::array{values[values.size() / 2], values[values.size() / 4], values[values.size() * 3 / 4]};
  };
  const char* const names[] = {"hasten", "by_hand", "added"};
  std::printf("{");
  for (std::size_t i = 0; i < times.size(); ++i) {
    const auto [median, low, high] = quartiles(times[i]);
    std::printf(R"("%s": [%.4g, %.4g, %.4g], )", names[i], median, low, high);
  }
  std::printf(R"("rounds": %d})"
              "\n",
              kRounds);
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string_view way = argc > 1 ? argv[1] : "";
  if (way == "hasten") {
    WithHasten loop;
    one_turn(loop, loop.accelerator().is_main_process());
    loop.accelerator().end_training();
  } else if (way == "libtorch") {
    ByHand loop;
    one_turn(loop, true);
  } else if (way == "added") {
    added();
  } else {
    std::cerr << "bench_mlp hasten|libtorch|added\n";
    return 2;
  }
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}

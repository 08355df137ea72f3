#pragma once

#include <cstdlib>
#include <sys/wait.h>
#include <unistd.h>

#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <hasten/device/device.h>
#include <hasten/hasten.h>

#include "support/ranks.h"

namespace hasten::test {

/// How many accelerators this machine has for this build. A child asks: a process that has asked CUDA can
/// fork none that uses it.
inline int accelerators() {
  static const int kCount = [] {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(device::backends().front()->count());
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
  }();
  return kCount;
}

/// Makes this forked process one of a run, as a launcher does it: through the environment.
inline void join(const Rank& rank, std::size_t store = 0, bool cpu = true) {
  ::setenv("HASTEN_CPU", cpu ? "1" : "0", 1);
  for (const auto& variable : config::environment_of(rank.process(store))) {
    if (variable.value) {
      ::setenv(variable.name.c_str(), variable.value->c_str(), 1);
    } else {
      ::unsetenv(variable.name.c_str());
    }
  }
}

/// `scale` * sin(0.7 i + phase) over the flattened index i, in float64.
inline at::Tensor wave(at::IntArrayRef shape, double scale, double phase) {
  const auto count = c10::multiply_integers(shape);
  return (at::arange(count, at::kDouble) * 0.7 + phase).sin().mul(scale).reshape(shape);
}

/// fc2(relu(fc1(x))). Parameter number k starts as wave(shape, 0.3, k), rounded to float32.
struct MlpImpl : torch::nn::Module {
  MlpImpl(std::int64_t inputs, std::int64_t hidden, std::int64_t outputs)
      : fc1(register_module("fc1", torch::nn::Linear(inputs, hidden))),
        fc2(register_module("fc2", torch::nn::Linear(hidden, outputs))) {
    const torch::NoGradGuard no_grad;
    double phase = 0;
    for (const auto& parameter : parameters()) parameter.copy_(wave(parameter.sizes(), 0.3, phase++));
  }
  at::Tensor forward(const at::Tensor& x) { return fc2(fc1(x).relu()); }

  torch::nn::Linear fc1;
  torch::nn::Linear fc2;
};
TORCH_MODULE(Mlp);

/// One weight w, from 0, with the loss w * x summed over a micro-batch, and SGD with a learning rate of 1.
struct Scalar {
  struct Net : torch::nn::Module {
    Net() : w(register_parameter("w", at::zeros({1}))) {}
    at::Tensor forward(const at::Tensor& x) { return (w * x).sum(); }
    at::Tensor w;
  };
  std::shared_ptr<Net> net = std::make_shared<Net>();
  torch::optim::SGD sgd{net->parameters(), torch::optim::SGDOptions(1.0)};
};

/// All parameters end to end.
inline at::Tensor flat(const torch::nn::Module& module) {
  std::vector<at::Tensor> parts;
  for (const auto& parameter : module.parameters()) parts.push_back(parameter.detach().flatten());
  return at::cat(parts);
}

}  // namespace hasten::test

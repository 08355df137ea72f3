// What a program outside the tree does with the installed package: a small training. Exits with 0 when all of
// it held.
#include <cstdio>
#include <cstring>

#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <hasten/base/version.h>
#include <hasten/hasten.h>

int main() {
  if (std::strcmp(hasten::version(), EXPECTED_VERSION) != 0) return 2;

  hasten::Accelerator accelerator({.cpu = true, .progress = false});
  torch::nn::Linear net(torch::nn::LinearOptions(1, 1).bias(false));
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
  const at::Tensor x = at::arange(1, 9).to(at::kFloat).view({8, 1}) / 8;
  hasten::data::Loader samples(hasten::data::tensors(x, 3 * x), {.batch_size = 4, .shuffle = true});
  auto [model, optimizer, loader] = accelerator.prepare(net, sgd, samples);
  for (int epoch = 0; epoch < 100; ++epoch) {
    for (auto& [input, target] : loader) {
      accelerator.backward((model(input) - target).square().mean());
      optimizer.step();
      optimizer.zero_grad();
    }
  }
  const double weight = net->weight.item<double>();
  std::printf("hasten %s learned %.4f\n", hasten::version(), weight);
  return weight > 2.99 && weight < 3.01 ? 0 : 3;
}

// Trains a ResNet-20 on Fashion-MNIST with LibTorch alone: one process, in fp32. fashion.cpp is the same
// program on hasten; what they share, the data and its augmentation, is in fashion_data.h.
#include <iostream>

#include <torch/torch.h>

#include <hasten/models/resnet.h>

#include "fashion_data.h"

int main(int argc, char** argv) try {
  constexpr int kEpochs = 4;
  torch::manual_seed(1);
  auto net = hasten::models::ResNet20(/*classes=*/10, /*in_channels=*/1);
  torch::optim::SGD sgd(net->parameters(),
                        torch::optim::SGDOptions(0.2).momentum(0.9).nesterov(true).weight_decay(5e-4));
  auto train = fashion::training_batches(fashion::folder(argc, argv));
  auto test = fashion::test_batches(fashion::folder(argc, argv));
  hasten::optim::CosineWithWarmup cosine(sgd, {.warmup_steps = 100, .total_steps = kEpochs * train.size()});

  auto [model, optimizer, loader, tests, scheduler] = std::tie(net, sgd, train, test, cosine);
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    model->train();
    for (auto& [images, labels] : loader) {
      auto loss = torch::nn::functional::cross_entropy(model(images), labels);
      loss.backward();
      optimizer.step();
      scheduler.step();
      optimizer.zero_grad();
    }

    model->eval();
    torch::NoGradGuard no_grad;
    std::int64_t correct = 0;
    for (auto& [images, labels] : tests) {
      correct += (model(images).argmax(1) == labels).sum().item<std::int64_t>();
    }
    std::cout << "epoch " << epoch + 1 << ": " << correct / 100.0 << " % of the test images are right\n";
  }
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}

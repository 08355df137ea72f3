// Trains a ResNet-20 on Fashion-MNIST with hasten: any number of processes, in the precision that suits the
// machine, resumable. fashion_plain.cpp is the same program on LibTorch alone.
#include <iostream>

#include <torch/torch.h>

#include <hasten/models/resnet.h>

#include "fashion_data.h"

int main(int argc, char** argv) try {
  constexpr int kEpochs = 4;
  const hasten::ProjectOptions project{.dir = "runs/fashion", .checkpoint_every = 200, .resume = true};
  hasten::Accelerator accelerator({.mixed_precision = hasten::fastest_precision(), .project = project});
  torch::manual_seed(1);
  auto net = hasten::models::ResNet20(/*classes=*/10, /*in_channels=*/1);
  torch::optim::SGD sgd(net->parameters(),
                        torch::optim::SGDOptions(0.2).momentum(0.9).nesterov(true).weight_decay(5e-4));
  auto train = fashion::training_batches(fashion::folder(argc, argv));
  auto test = fashion::test_batches(fashion::folder(argc, argv));
  hasten::optim::CosineWithWarmup cosine(sgd, {.warmup_steps = 100, .total_steps = kEpochs * train.size()});

  auto [model, optimizer, loader, tests, scheduler] = accelerator.prepare(net, sgd, train, test, cosine);
  for (auto epoch : accelerator.epochs(kEpochs)) {
    model->train();
    for (auto& [images, labels] : loader) {
      auto loss = torch::nn::functional::cross_entropy(model(images), labels);
      accelerator.backward(loss);
      optimizer.step();
      scheduler.step();
      optimizer.zero_grad();
      accelerator.log({{"loss", loss}});
    }

    model->eval();
    torch::NoGradGuard no_grad;
    std::int64_t correct = 0;
    for (auto& [images, labels] : tests) {
      correct += accelerator.gather_for_metrics(model(images).argmax(1) == labels).sum().item<std::int64_t>();
    }
    accelerator.log({{"test accuracy", correct / 100.0}}, accelerator.updates());
    accelerator.print("epoch ", epoch + 1, ": ", correct / 100.0, " % of the test images are right");
  }
  accelerator.end_training();
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}

#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <nlohmann/json.hpp>

#include <torch/nn/functional/loss.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>

#include <hasten/base/files.h>
#include <hasten/device/device.h>

#include "support/temporary_folder.h"
#include "train/support.h"

namespace hasten {
namespace {

using test::Mlp;
using test::Rank;
using test::run_ranks;
using test::TemporaryFolder;
using torch::nn::functional::cross_entropy;

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const nlohmann::json& recorded,
                                                        const std::vector<at::Tensor>& parameters) {
  const std::string kind = recorded.at("optimizer");
  const auto& o = recorded.at("options");
  const auto number = [&](const char* key, double otherwise) { return o.value(key, otherwise); };
  if (kind == "sgd")
    return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(number("lr", 0))
                                                               .momentum(number("momentum", 0))
                                                               .weight_decay(number("weight_decay", 0))
                                                               .nesterov(o.value("nesterov", false)));
  if (kind == "adam")
    return std::make_unique<torch::optim::Adam>(
        parameters,
        torch::optim::AdamOptions(number("lr", 0))
            .betas(std::make_tuple(o.at("betas")[0].get<double>(), o.at("betas")[1].get<double>()))
            .weight_decay(number("weight_decay", 0)));
  if (kind == "adamw")
    return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(number("lr", 0))
                                                                 .weight_decay(number("weight_decay", 0))
                                                                 .amsgrad(o.value("amsgrad", false)));
  if (kind == "adagrad")
    return std::make_unique<torch::optim::Adagrad>(parameters, torch::optim::AdagradOptions(number("lr", 0)));
  return std::make_unique<torch::optim::RMSprop>(parameters, torch::optim::RMSpropOptions(number("lr", 0))
                                                                 .alpha(number("alpha", 0))
                                                                 .momentum(number("momentum", 0))
                                                                 .centered(o.value("centered", false)));
}

void expect_close(double value, double expected, const std::string& what) {
  EXPECT_LE(std::abs(value - expected), 1e-10 * std::max(1.0, std::abs(expected))) << what;
}

/// One of the recorded runs of Accelerate and PyTorch, through the Accelerator; see
/// golden/optim/trajectories.json.
void follow(const nlohmann::json& recorded) {
  const std::string what =
      recorded.at("optimizer").get<std::string>() + " " + recorded.at("accumulation_steps").dump();
  const bool divides_by_all = !recorded.at("divide_by_window").get<bool>();
  Accelerator accelerator({.gradient_accumulation_steps = recorded.at("accumulation_steps"),
                           .short_window = divides_by_all ? ShortWindow::kDivideByAll : ShortWindow::kMean,
                           .progress = false});
  Mlp net(8, 16, 3);
  net->to(at::kDouble);
  const auto optimizer_of = make_optimizer(recorded, net->parameters());
  data::Loader train(data::tensors(test::wave({50, 8}, 1.0, 0.5), at::arange(50) % 3), {.batch_size = 8});
  auto [model, optimizer, loader] = accelerator.prepare(net, *optimizer_of, train);
  std::size_t batch = 0;
  std::size_t update = 0;
  for (auto epoch : accelerator.epochs(3)) {
    static_cast<void>(epoch);
    for (auto& [x, y] : loader) {
      auto window = accelerator.accumulate(model);
      const auto loss = cross_entropy(model(x), y);
      accelerator.backward(loss);
      if (!recorded.at("max_norm").is_null() && accelerator.sync_gradients())
        expect_close(accelerator.clip_grad_norm_(model, recorded.at("max_norm")).item<double>(),
                     recorded.at("gradient_norms").at(update++), what + " norm");
      optimizer.step();
      optimizer.zero_grad();
      expect_close(loss.item<double>(), recorded.at("losses").at(batch++), what + " loss");
    }
  }
  EXPECT_EQ(batch, recorded.at("losses").size());
  for (int i = 0; i < 3; ++i)
    expect_close(net->fc2->bias[i].item<double>(), recorded.at("final_fc2_bias").at(i), what + " bias");
}

/// Kinds of devices of this machine, the CPU always; a GPU joins where there is one. What trains on one
/// device must train alike on all.
class EachDevice : public testing::TestWithParam<std::string> {
 protected:
  /// As many ranks as there are devices for, at most `most`.
  void run_here(int most, const std::function<void(Rank&)>& body) {
    const bool cpu = GetParam() == "cpu";
    run_ranks(cpu ? most : std::min(most, test::accelerators()), [&](Rank& rank) {
      test::join(rank, 0, cpu);
      body(rank);
    });
  }
};

TEST_P(EachDevice, FollowsEveryRecordedTrajectory) {
  run_here(1, [](Rank&) {
    const auto golden = nlohmann::json::parse(files::read(HASTEN_GOLDEN_DIR "/optim/trajectories.json"));
    ASSERT_EQ(golden.at("cases").size(), 30U);
    for (const auto& recorded : golden.at("cases")) follow(recorded);
  });
}

TEST_P(EachDevice, GetsModelsAndBatchesWhereItComputes) {
  run_here(2, [](Rank& rank) {
    Accelerator accelerator({.progress = false});
    Mlp net(8, 16, 3);
    data::Loader samples(data::tensors(test::wave({24, 8}, 1.0, 0.5).to(at::kFloat), at::arange(24)),
                         {.batch_size = 4, .workers = 1});
    auto [model, loader] = accelerator.prepare(net, samples);
    EXPECT_EQ(net->fc1->weight.device(), accelerator.device());
    std::int64_t seen = 0;
    for (auto& [x, y] : loader) {
      EXPECT_EQ(x.device(), accelerator.device());
      EXPECT_EQ(y.device(), accelerator.device());
      EXPECT_EQ(model(x).device(), accelerator.device());
      // A batch on its way to a device must not be overwritten by the next one.
      EXPECT_TRUE(x.cpu().equal(test::wave({24, 8}, 1.0, 0.5).to(at::kFloat).index_select(0, y.cpu())));
      seen += accelerator.gather(y).numel();
    }
    EXPECT_EQ(seen, 24);
    EXPECT_EQ(accelerator.process_index(), rank.index());
  });
}

TEST_P(EachDevice, ComputesInTheAskedPrecisionAndReturnsFp32) {
  for (const Precision precision : {Precision::kNo, Precision::kBf16, Precision::kFp16}) {
    run_here(2, [precision](Rank&) {
      Accelerator accelerator({.mixed_precision = precision, .progress = false});
      struct SpyImpl : torch::nn::Module {
        SpyImpl() : fc(register_module("fc", torch::nn::Linear(4, 2))) {}
        std::pair<at::Tensor, std::string> forward(const at::Tensor& x) {
          at::Tensor y = fc(x);
          seen = y.scalar_type();
          return {y, "label"};
        }
        torch::nn::Linear fc;
        at::ScalarType seen = at::kFloat;
      };
      auto net = std::make_shared<SpyImpl>();
      auto model = accelerator.prepare(net);
      const auto [output, label] = model(at::ones({3, 4}, accelerator.device()));
      EXPECT_EQ(output.scalar_type(), at::kFloat);
      EXPECT_EQ(label, "label");
      EXPECT_EQ(net->seen, precision == Precision::kNo     ? at::kFloat
                           : precision == Precision::kBf16 ? at::kBFloat16
                                                           : at::kHalf);
      accelerator.backward(output.square().mean());
      EXPECT_EQ(net->fc->weight.grad().scalar_type(), at::kFloat);
    });
  }
}

TEST_P(EachDevice, LeavesOutAnUpdateThatOverflowed) {
  run_here(2, [](Rank& rank) {
    Accelerator accelerator({.mixed_precision = Precision::kFp16, .progress = false});
    auto net = std::make_shared<torch::nn::LinearImpl>(torch::nn::LinearOptions(1, 1).bias(false));
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.5));
    optim::Lambda halving(sgd, [](std::int64_t t) { return std::pow(0.5, t); });
    auto [model, optimizer, scheduler] = accelerator.prepare(net, sgd, halving);
    const auto lr = [&] { return sgd.param_groups()[0].options().get_lr(); };
    const auto step = [&, &model = model, &optimizer = optimizer, &scheduler = scheduler](double factor) {
      accelerator.backward(model(at::ones({1, 1}, accelerator.device())).sum() * factor);
      const double norm = accelerator.clip_grad_norm_(model, 1e9).item<double>();
      optimizer.step();
      scheduler.step();
      optimizer.zero_grad();
      return norm;
    };
    const double before = net->weight.item<double>();
    // Only the last rank's gradient overflows, yet all leave the update out.
    const bool last = rank.index() == accelerator.num_processes() - 1;
    step(last ? std::numeric_limits<double>::infinity() : 1.0);
    EXPECT_TRUE(optimizer.step_was_skipped());
    EXPECT_TRUE(accelerator.optimizer_step_was_skipped());
    EXPECT_EQ(net->weight.item<double>(), before);
    EXPECT_EQ(lr(), 0.5);
    EXPECT_EQ(accelerator.updates(), 0);
    EXPECT_EQ(step(1.0), 1.0) << "the norm is that of the true gradients";
    EXPECT_FALSE(accelerator.optimizer_step_was_skipped());
    EXPECT_NEAR(before - net->weight.item<double>(), 0.5, 1e-6);
    EXPECT_EQ(lr(), 0.25);
  });
}

TEST_P(EachDevice, GoesOnFromACheckpoint) {
  const TemporaryFolder folder;
  run_here(2, [&](Rank&) {
    at::Tensor drawn;
    for (const bool resumed : {false, true}) {
      Accelerator accelerator({.progress = false});
      Mlp net(8, 16, 3);
      torch::optim::Adam adam(net->parameters(), torch::optim::AdamOptions(0.01));
      auto [model, optimizer] = accelerator.prepare(net, adam);
      const auto step = [&, &model = model, &optimizer = optimizer] {
        accelerator.backward(model(at::ones({4, 8}, accelerator.device())).square().mean());
        optimizer.step();
        optimizer.zero_grad();
      };
      if (resumed) {
        accelerator.load_state(folder / "saved");
      } else {
        step();
        accelerator.save_state(folder / "saved");
      }
      step();
      const at::Tensor result = at::cat({test::flat(*net).cpu(), at::rand({3}, accelerator.device()).cpu()});
      if (resumed)
        EXPECT_TRUE(result.equal(drawn)) << "weights and random numbers after the checkpoint";
      else
        drawn = result;
    }
  });
}

TEST_P(EachDevice, KnowsItsMemory) {
  run_here(1, [](Rank&) {
    const Accelerator accelerator({.progress = false});
    const at::Device here = accelerator.device();
    const device::Backend& backend = device::backend(here);
    const std::int64_t before = backend.memory(device::index(here)).used;
    const at::Tensor large = at::ones({64 << 20}, at::dtype(at::kByte).device(here));
    backend.synchronize(device::index(here));
    const device::Memory memory = backend.memory(device::index(here));
    EXPECT_GE(memory.used, before + (32 << 20));
    EXPECT_GE(memory.peak, memory.used / 2);
    EXPECT_GT(memory.total, memory.used);
  });
}

INSTANTIATE_TEST_SUITE_P(This, EachDevice, testing::ValuesIn([] {
                           std::vector<std::string> kinds{"cpu"};
                           if (test::accelerators() > 0) kinds.push_back("accelerator");
                           return kinds;
                         }()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace hasten

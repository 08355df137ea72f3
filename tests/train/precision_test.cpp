#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <mutex>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/rnn.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

#include <hasten/base/log.h>
#include <hasten/precision/fp32.h>

#include "support/errors.h"
#include "support/temporary_folder.h"
#include "train/support.h"

namespace hasten {
namespace {

using test::message_of;
using test::Rank;
using test::run_ranks;
using test::Scalar;
using test::TemporaryFolder;
using testing::AllOf;
using testing::HasSubstr;

// ---- loss scaling ----

TEST(LossScale, IsTakenOutOnceAWindowHoweverOftenGradientsAreClipped) {
  run_ranks(1, [](Rank& rank) {
    test::join(rank);
    Accelerator accelerator({.mixed_precision = Precision::kFp16,
                             .gradient_accumulation_steps = 2,
                             .grad_scaler = {.init_scale = 8},
                             .progress = false});
    Scalar scalar;
    auto [model, optimizer] = accelerator.prepare(scalar.net, scalar.sgd);
    for (int i = 1; i <= 2; ++i) {
      auto window = accelerator.accumulate(model);
      accelerator.backward(model(at::full({1}, 2.0 * i)));
      const double norm = accelerator.clip_grad_norm_(model, 1.0).item<double>();
      // The gradient is (2 + 4) / 2; within the window it is left as it is, scale and all.
      EXPECT_EQ(scalar.net->w.grad().item<double>(), i == 1 ? 8.0 : scalar.net->w.grad().item<double>());
      if (i == 2) {
        EXPECT_EQ(norm, 3.0);
        EXPECT_NEAR(accelerator.clip_grad_norm_(model, 1.0).item<double>(), 1.0, 1e-5);
      }
      optimizer.step();
      optimizer.zero_grad();
    }
    EXPECT_NEAR(scalar.net->w.item<double>(), -1.0, 1e-5);
    EXPECT_FALSE(accelerator.optimizer_step_was_skipped());
  });
}

TEST(LossScale, IsOneForSeveralOptimizersAndShrinksOnce) {
  // One of two optimizers meets an infinity: it alone leaves its update out, and the scale is halved once.
  run_ranks(2,
            [](Rank& rank) {
              test::join(rank);
              Accelerator accelerator(
                  {.mixed_precision = Precision::kFp16, .grad_scaler = {.init_scale = 8}, .progress = false});
              Scalar bad;
              Scalar good;
              torch::optim::Adam adam(bad.net->parameters(), torch::optim::AdamOptions(0.1));
              optim::Lambda schedule(adam, [](std::int64_t t) { return 1.0 + static_cast<double>(t); });
              auto [a, b, a_optimizer, b_optimizer, scheduler] =
                  accelerator.prepare(bad.net, good.net, adam, good.sgd, schedule);
              const auto step = [&, &a = a, &b = b, &a_optimizer = a_optimizer,
                                 &b_optimizer = b_optimizer](double x) {
                accelerator.backward(a(at::full({1}, x)) + b(at::ones({1})));
                a_optimizer.step();
                b_optimizer.step();
                a_optimizer.zero_grad();
                b_optimizer.zero_grad();
              };
              // Only one rank's gradient overflows.
              step(rank.index() == 1 ? std::numeric_limits<double>::infinity() : 1.0);
              EXPECT_TRUE(a_optimizer.step_was_skipped());
              EXPECT_FALSE(b_optimizer.step_was_skipped());
              EXPECT_TRUE(accelerator.optimizer_step_was_skipped());
              EXPECT_EQ(bad.net->w.item<double>(), 0.0);
              EXPECT_EQ(good.net->w.item<double>(), -1.0);
              EXPECT_TRUE(adam.state().empty()) << "no counter moves with a step that was left out";
              step(1.0);
              EXPECT_FALSE(accelerator.optimizer_step_was_skipped());
              // Adam's first step is the learning rate in size: its count began at 1.
              EXPECT_NEAR(bad.net->w.item<double>(), -0.1, 1e-6);
              EXPECT_EQ(good.net->w.item<double>(), -2.0);
            },
            {.stores = 1});
}

/// The scale that the next gradients carry.
double scale_of(Accelerator& accelerator, const PreparedModel<Scalar::Net>& model) {
  model->w.mutable_grad() = at::Tensor();
  auto local = accelerator.no_sync(model);
  accelerator.backward(model(at::ones({1})));
  const double scale = model->w.grad().item<double>();
  model->w.mutable_grad() = at::Tensor();
  return scale;
}

TEST(LossScale, GoesOnFromACheckpoint) {
  const TemporaryFolder folder;
  run_ranks(1, [&](Rank& rank) {
    test::join(rank);
    for (const bool resumed : {false, true}) {
      Accelerator accelerator({.mixed_precision = Precision::kFp16,
                               .grad_scaler = {.init_scale = 8, .growth_interval = 3},
                               .progress = false});
      Scalar scalar;
      auto [model, optimizer] = accelerator.prepare(scalar.net, scalar.sgd);
      const auto step = [&, &model = model, &optimizer = optimizer](double x) {
        accelerator.backward(model(at::full({1}, x)));
        optimizer.step();
        optimizer.zero_grad();
      };
      if (!resumed) {
        step(std::numeric_limits<double>::infinity());
        step(1);
        step(1);
        accelerator.save_state(folder / "saved");
        continue;
      }
      accelerator.load_state(folder / "saved");
      EXPECT_EQ(scale_of(accelerator, model), 4.0);
      step(1);  // the third good step since the overflow
      EXPECT_EQ(scale_of(accelerator, model), 8.0);
    }
  });
}

TEST(LossScale, CannotServeAModelThatIsFp16Itself) {
  run_ranks(1, [](Rank& rank) {
    test::join(rank);
    Accelerator accelerator({.mixed_precision = Precision::kFp16, .progress = false});
    auto net = std::make_shared<torch::nn::LinearImpl>(2, 2);
    net->to(at::kHalf);
    EXPECT_THAT(message_of([&] { (void)accelerator.prepare(net); }, ErrorCode::kInvalidArgument),
                AllOf(HasSubstr("'weight' is fp16 itself"), HasSubstr("Build the model in fp32")));
  });
}

TEST(MixedPrecision, EndsWithAPassThatThrows) {
  run_ranks(1, [](Rank& rank) {
    test::join(rank);
    Accelerator accelerator({.mixed_precision = Precision::kBf16, .progress = false});
    struct Net : torch::nn::Module {
      at::Tensor forward(const at::Tensor& x) {
        if (x.numel() == 0) throw std::runtime_error("an empty batch");
        return fc(x);
      }
      torch::nn::Linear fc = register_module("fc", torch::nn::Linear(1, 1));
    };
    auto model = accelerator.prepare(std::make_shared<Net>());
    EXPECT_THROW((void)model(at::zeros({0, 1})), std::runtime_error);
    EXPECT_EQ(model->fc(at::ones({1, 1})).scalar_type(), at::kFloat) << "autocast is off again";
    EXPECT_EQ(model.run([](Net& net) { return net.fc(at::ones({1, 1})).scalar_type(); }), at::kBFloat16);
  });
}

TEST(MixedPrecision, NeverComputesWithWeightsOfBeforeAStep) {
  // Within one region of autocast a step replaces the weight, whose low-precision copy was kept.
  run_ranks(1, [](Rank& rank) {
    test::join(rank);
    Accelerator accelerator({.mixed_precision = Precision::kBf16, .progress = false});
    auto net = std::make_shared<torch::nn::LinearImpl>(torch::nn::LinearOptions(1, 1).bias(false));
    const at::Tensor one = at::ones({1, 1});
    {
      const at::NoGradGuard no_grad;
      net->weight.fill_(1);
    }
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(1.0));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const auto region = accelerator.autocast();
    accelerator.backward(net->forward(one).sum());
    optimizer.step();
    EXPECT_EQ(net->forward(one).item<double>(), 0.0);
  });
}

// ---- parts in fp32 ----

/// Notes in which type each of its parts computes.
struct PartsImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor a = body(x);
    const at::Tensor b = head->forward(a);
    const at::Tensor c = last(b);
    types = {a.scalar_type(), b.scalar_type(), c.scalar_type()};
    return c;
  }
  torch::nn::Linear body = register_module("body", torch::nn::Linear(3, 4));
  torch::nn::Sequential head = register_module(
      "head", torch::nn::Sequential(torch::nn::Linear(4, 4), torch::nn::Identity(), torch::nn::Linear(4, 4)));
  torch::nn::Linear last =
      register_module("last", torch::nn::Linear(torch::nn::LinearOptions(4, 2).bias(false)));
  std::vector<at::ScalarType> types;
};

TEST(KeepFp32, HoldsForTheModulesThatAreNamed) {
  using Types = std::vector<at::ScalarType>;
  constexpr auto kLow = at::kBFloat16;
  for (const auto& [names, expected] : std::vector<std::pair<std::vector<std::string>, Types>>{
           {{}, {kLow, kLow, kLow}},
           {{"head"}, {kLow, at::kFloat, kLow}},
           {{"head.2"}, {kLow, at::kFloat, kLow}},
           {{"body", "last"}, {at::kFloat, kLow, at::kFloat}}})
    for (const int processes : {1, 2})
      run_ranks(processes, [&](Rank& rank) {
        test::join(rank);
        Accelerator accelerator({.mixed_precision = Precision::kBf16, .progress = false, .keep_fp32 = names});
        auto net = std::make_shared<PartsImpl>();
        auto model = accelerator.prepare(net);
        const at::Tensor x = test::wave({5, 3}, 1.0, 0.1).to(at::kFloat);
        const at::Tensor out = model(x);
        EXPECT_EQ(net->types, expected);
        accelerator.backward(out.square().mean());
        for (const auto& parameter : net->parameters()) {
          EXPECT_EQ(parameter.grad().scalar_type(), at::kFloat);
          EXPECT_TRUE(parameter.grad().isfinite().all().item<bool>());
        }
      });
}

TEST(KeepFp32, ComputesWhatFp32Computes) {
  run_ranks(1, [](Rank& rank) {
    test::join(rank);
    Accelerator accelerator(
        {.mixed_precision = Precision::kBf16, .progress = false, .keep_fp32 = {"body", "head", "last"}});
    auto net = std::make_shared<PartsImpl>();
    const at::Tensor x = test::wave({5, 3}, 1.0, 0.1).to(at::kFloat);
    const at::Tensor plain = net->forward(x);
    plain.square().mean().backward();
    std::vector<at::Tensor> gradients;
    for (const auto& parameter : net->parameters()) gradients.push_back(parameter.grad().clone());
    net->zero_grad();
    auto model = accelerator.prepare(net);
    const at::Tensor kept = model(x);
    EXPECT_TRUE(kept.equal(plain));
    accelerator.backward(kept.square().mean());
    for (std::size_t i = 0; i < gradients.size(); ++i)
      EXPECT_TRUE(net->parameters()[i].grad().equal(gradients[i]));
  });
}

TEST(KeepFp32, NamesAPathThatIsNoModules) {
  run_ranks(1, [](Rank& rank) {
    test::join(rank);
    Accelerator accelerator({.mixed_precision = Precision::kBf16, .progress = false, .keep_fp32 = {"hea"}});
    auto net = std::make_shared<PartsImpl>();
    EXPECT_THAT(message_of([&] { (void)accelerator.prepare(net); }, ErrorCode::kNotFound),
                AllOf(HasSubstr("'hea'"), HasSubstr("'body', 'head.0', 'head.2', 'last'")));
  });
}

TEST(InFp32, IsForAPartOfAForward) {
  run_ranks(1, [](Rank& rank) {
    test::join(rank);
    Accelerator accelerator({.mixed_precision = Precision::kBf16, .progress = false});
    struct Net : torch::nn::Module {
      at::Tensor forward(const at::Tensor& x) {
        const at::Tensor low = fc(x);
        const at::Tensor high = precision::in_fp32(fc, low);
        const at::Tensor product = precision::in_fp32(
            [](const at::Tensor& a, const at::Tensor& b) { return at::matmul(a, b); }, low, low);
        const at::Tensor after = fc(high);
        types = {low.scalar_type(), high.scalar_type(), product.scalar_type(), after.scalar_type()};
        return after;
      }
      torch::nn::Linear fc = register_module("fc", torch::nn::Linear(2, 2));
      std::vector<at::ScalarType> types;
    };
    auto net = std::make_shared<Net>();
    auto model = accelerator.prepare(net);
    (void)model(at::ones({2, 2}));
    EXPECT_EQ(net->types,
              (std::vector<at::ScalarType>{at::kBFloat16, at::kFloat, at::kFloat, at::kBFloat16}));
  });
}

// ---- fp32 copies of bf16 weights ----

/// A weight of 256 in bf16, whose next smaller value is 255: updates of 0.25 each.
std::pair<double, at::ScalarType> step_down(int steps, bool copies) {
  Accelerator accelerator({.progress = false, .fp32_master_weights = copies});
  Scalar scalar;
  scalar.net->to(at::kBFloat16);
  {
    const at::NoGradGuard no_grad;
    scalar.net->w.fill_(256);
  }
  auto [model, optimizer] = accelerator.prepare(scalar.net, scalar.sgd);
  for (int i = 0; i < steps; ++i) {
    accelerator.backward(model(at::full({1}, 0.25, at::kBFloat16)));
    optimizer.step();
    optimizer.zero_grad();
  }
  return {scalar.net->w.item<double>(), scalar.net->w.scalar_type()};
}

TEST(MasterWeights, TakeUpUpdatesThatBf16CannotHold) {
  for (const int processes : {1, 2})
    run_ranks(processes,
              [](Rank& rank) {
                test::join(rank);
                EXPECT_EQ(step_down(8, true), std::pair(254.0, at::kBFloat16));
                EXPECT_EQ(step_down(8, false), std::pair(256.0, at::kBFloat16))
                    << "each update is rounded away";
              },
              {.stores = 1});
}

/// A small model in `type` after some steps of AdamW on fixed gradients, and what its state is made of.
template <class Optimizer, class Options>
void expect_like_fp32(Options options) {
  // bf16 weights with copies go exactly as fp32 weights do, seen through rounding.
  std::vector<at::Tensor> results;
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    Accelerator accelerator({.progress = false});
    auto net = std::make_shared<torch::nn::LinearImpl>(4, 3);
    const at::NoGradGuard no_grad;
    net->weight.copy_(test::wave({3, 4}, 0.5, 0.0).to(at::kBFloat16));
    net->bias.copy_(test::wave({3}, 0.5, 1.0).to(at::kBFloat16));
    net->to(type);
    Optimizer mine(net->parameters(), options);
    auto [model, optimizer] = accelerator.prepare(net, mine);
    for (int step = 0; step < 5; ++step) {
      double phase = step;
      for (auto& parameter : net->parameters())
        parameter.mutable_grad() = test::wave(parameter.sizes(), 1.0, phase++).to(at::kBFloat16).to(type);
      optimizer.step();
      for (auto& parameter : net->parameters()) EXPECT_EQ(parameter.grad().scalar_type(), type);
    }
    results.push_back(test::flat(*net).to(at::kBFloat16));
  }
  EXPECT_TRUE(results[0].equal(results[1]));
}

TEST(MasterWeights, GoAsFp32WeightsGoForEveryOptimizer) {
  run_ranks(1, [](Rank& rank) {
    test::join(rank);
    expect_like_fp32<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9));
    expect_like_fp32<torch::optim::AdamW>(torch::optim::AdamWOptions(0.01));
  });
}

TEST(MasterWeights, GoOnFromACheckpointBitForBit) {
  const TemporaryFolder folder;
  run_ranks(1, [&](Rank& rank) {
    test::join(rank);
    std::vector<at::Tensor> results;
    for (const bool resumed : {false, true}) {
      Accelerator accelerator({.progress = false});
      Scalar scalar;
      scalar.net->to(at::kBFloat16);
      {
        const at::NoGradGuard no_grad;
        scalar.net->w.fill_(256);
      }
      torch::optim::Adam adam(scalar.net->parameters(), torch::optim::AdamOptions(0.3));
      auto [model, optimizer] = accelerator.prepare(scalar.net, adam);
      const auto steps = [&, &model = model, &optimizer = optimizer](int count) {
        for (int i = 0; i < count; ++i) {
          accelerator.backward(model(at::full({1}, 0.3, at::kBFloat16)));
          optimizer.step();
          optimizer.zero_grad();
        }
      };
      if (resumed) {
        accelerator.load_state(folder / "saved");
      } else {
        steps(2);
        accelerator.save_state(folder / "saved");
      }
      steps(2);
      results.push_back(scalar.net->w.detach().clone());
      EXPECT_EQ(scalar.net->w.item<double>(), 255.0) << "256 - 4 * 0.3 to the next bf16";
      // A weight set from outside is taken over.
      {
        const at::NoGradGuard no_grad;
        scalar.net->w.fill_(128);
      }
      steps(1);
      EXPECT_EQ(scalar.net->w.item<double>(), 127.5) << "128 - 0.3 to the next bf16";
    }
    EXPECT_TRUE(results[0].equal(results[1]));
  });
}

// ---- losses that are not finite ----

TEST(Loss, ThatIsNotFiniteIsReportedOnceWithStepAndRank) {
  const auto reports = run_ranks(2, [](Rank& rank) {
    test::join(rank);
    log::set_sink([&](log::Level level, std::string_view text) {
      if (level == log::Level::kWarning) rank.report(std::string(text) + "\n");
    });
    Accelerator accelerator({.progress = false});
    Scalar scalar;
    auto [model, optimizer] = accelerator.prepare(scalar.net, scalar.sgd);
    for (int i = 0; i < 5; ++i) {
      const bool bad = rank.index() == 1 && i == 2;
      accelerator.backward(model(at::full({1}, bad ? std::nan("") : 1.0)));
      optimizer.step();
      optimizer.zero_grad();
    }
    accelerator.end_training();
    log::set_sink(nullptr);
  });
  EXPECT_THAT(reports[1], HasSubstr("rank 1: the loss of step 3 is nan"));
  EXPECT_EQ(std::count(reports[1].begin(), reports[1].end(), '\n'), 1);
  // On rank 0 the weight is lost one step later.
  EXPECT_THAT(reports[0], HasSubstr("rank 0: the loss of step 4 is nan"));
  EXPECT_EQ(std::count(reports[0].begin(), reports[0].end(), '\n'), 1);
}

// ---- operators without fp16 ----

TEST(Fp16OnTheCpu, NamesAnOperatorThatDoesNotExist) {
  struct NetImpl : torch::nn::Module {
    at::Tensor forward(const at::Tensor& x) { return std::get<0>(lstm(x)); }
    torch::nn::LSTM lstm = register_module("lstm", torch::nn::LSTM(4, 3));
  };
  run_ranks(1, [](Rank& rank) {
    test::join(rank);
    const at::Tensor x = test::wave({5, 2, 4}, 1.0, 0.0).to(at::kFloat);
    {
      Accelerator accelerator({.mixed_precision = Precision::kFp16, .progress = false});
      auto model = accelerator.prepare(std::make_shared<NetImpl>());
      EXPECT_THAT(message_of([&] { (void)model(x); }, ErrorCode::kUnavailable),
                  AllOf(HasSubstr("'LSTM forward propagation'"), HasSubstr("fp16 on cpu"),
                        HasSubstr("Use bf16"), HasSubstr("keep_fp32")));
    }
    // The remedies work.
    for (const AcceleratorOptions& options :
         {AcceleratorOptions{.mixed_precision = Precision::kBf16, .progress = false},
          AcceleratorOptions{
              .mixed_precision = Precision::kFp16, .progress = false, .keep_fp32 = {"lstm"}}}) {
      Accelerator accelerator(options);
      auto net = std::make_shared<NetImpl>();
      auto model = accelerator.prepare(net);
      accelerator.backward(model(x).square().mean());
      EXPECT_TRUE(net->lstm->parameters()[0].grad().isfinite().all().item<bool>());
    }
  });
}

}  // namespace
}  // namespace hasten

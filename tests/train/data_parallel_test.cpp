#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/optim/adam.h>

#include "support/errors.h"
#include "support/temporary_folder.h"
#include "train/support.h"

namespace hasten {
namespace {

using parallel::GradientCompression;
using test::message_of;
using test::Mlp;
using test::Rank;
using test::run_ranks;
using test::Scalar;
using test::TemporaryFolder;
using testing::AllOf;
using testing::HasSubstr;

std::string bytes_of(const at::Tensor& tensor) {
  const at::Tensor plain = tensor.detach().contiguous();
  return {static_cast<const char*>(plain.const_data_ptr()), plain.nbytes()};
}

/// Fails unless a tensor has the same bits on all ranks.
void expect_equal_on_all_ranks(Accelerator& accelerator, const at::Tensor& tensor) {
  const auto all = accelerator.group().all_gather_bytes(bytes_of(tensor));
  for (const auto& one : all) EXPECT_EQ(one, all[0]);
}

// ---- parameters of every kind ----

TEST(DataParallel, AveragesSparseGradients) {
  run_ranks(2, [](Rank& rank) {
    test::join(rank);
    Accelerator accelerator({.progress = false});
    struct Net : torch::nn::Module {
      at::Tensor forward(const at::Tensor& ids) { return table(ids).sum(1); }
      torch::nn::Embedding table =
          register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(4, 2).sparse(true)));
      torch::nn::Linear fc = register_module("fc", torch::nn::Linear(1, 1));  // frozen below
    };
    auto net = std::make_shared<Net>();
    for (auto& parameter : net->fc->parameters()) parameter.set_requires_grad(false);
    {
      const at::NoGradGuard no_grad;
      net->table->weight.fill_(rank.index() == 0 ? 1 : 7);
      net->fc->weight.fill_(rank.index() == 0 ? 3 : 9);
    }
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(1.0));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    for (int step = 1; step <= 3; ++step) {
      // Rank 0 looks up row 0 twice and row 2, rank 1 rows 2 and 3.
      const at::Tensor ids =
          rank.index() == 0 ? at::tensor({0, 0, 2}, at::kLong) : at::tensor({2, 3}, at::kLong);
      accelerator.backward(model(ids).sum());
      EXPECT_TRUE(net->table->weight.grad().is_sparse());
      const double norm = accelerator.clip_grad_norm_(model, 1e9).item<double>();
      // The mean over ranks is 1, 0, 1, 1/2 in both columns.
      EXPECT_NEAR(norm, std::sqrt(2 * (1 + 1 + 0.25)), 1e-6);
      optimizer.step();
      optimizer.zero_grad();
      const at::Tensor expected =
          at::tensor({1.0F - static_cast<float>(step), 1.0F, 1.0F - static_cast<float>(step),
                      1.0F - 0.5F * static_cast<float>(step)});
      EXPECT_TRUE(net->table->weight.select(1, 0).equal(expected));
      EXPECT_TRUE(net->table->weight.select(1, 1).equal(expected));
    }
    EXPECT_EQ(net->fc->weight.item<double>(), 3.0) << "a frozen parameter is rank 0's, and stays";
  });
}

TEST(DataParallel, CountsASharedParameterOnce) {
  run_ranks(2, [](Rank& rank) {
    test::join(rank);
    Accelerator accelerator({.progress = false});
    struct Tied : torch::nn::Module {
      Tied() : w(register_parameter("w", at::zeros({1}))) { register_parameter("again", w); }
      at::Tensor forward(const at::Tensor& x) { return (w * x).sum() + (w * x * 2).sum(); }
      at::Tensor w;
    };
    auto net = std::make_shared<Tied>();
    torch::optim::SGD sgd({net->w}, torch::optim::SGDOptions(1.0));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    for (int step = 1; step <= 2; ++step) {
      accelerator.backward(model(at::full({1}, rank.index() == 0 ? 1.0 : 3.0)));
      EXPECT_EQ(net->w.grad().item<double>(), 6.0) << "3 times the mean of 1 and 3";
      optimizer.step();
      optimizer.zero_grad();
    }
    EXPECT_EQ(net->w.item<double>(), -12.0);
  });
}

TEST(DataParallel, KnowsAStaticGraph) {
  // A parameter is used twice in a pass, another never: with a static graph both are learnt in the first
  // step.
  run_ranks(2, [](Rank& rank) {
    test::join(rank);
    Accelerator accelerator({.data_parallel = {.static_graph = true}, .progress = false});
    struct Net : torch::nn::Module {
      at::Tensor forward(const at::Tensor& x) { return (used * x).sum() + (used * x).square().sum(); }
      at::Tensor used = register_parameter("used", at::ones({1}));
      at::Tensor unused = register_parameter("unused", at::ones({1}));
    };
    auto net = std::make_shared<Net>();
    auto model = accelerator.prepare(net);
    for (int step = 0; step < 4; ++step) {
      accelerator.backward(model(at::full({1}, rank.index() == 0 ? 1.0 : 2.0)));
      // x + 2 w x^2 with w = 1: 3 and 10.
      EXPECT_EQ(net->used.grad().item<double>(), 6.5);
      net->used.mutable_grad().reset();
    }
  });
}

TEST(DataParallel, GivesTheSameGradientsInBucketsOfAnySize) {
  run_ranks(2, [](Rank& rank) {
    test::join(rank);
    std::vector<at::Tensor> results;
    for (const double megabytes : {0.0001, 0.001, 25.0}) {
      Accelerator accelerator({.data_parallel = {.bucket_cap_mb = megabytes}, .progress = false});
      Mlp net(16, 32, 8);
      torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      for (int step = 0; step < 3; ++step) {
        accelerator.backward(
            model(test::wave({4, 16}, 1.0, rank.index() + step).to(at::kFloat)).square().sum());
        optimizer.step();
        optimizer.zero_grad();
      }
      results.push_back(test::flat(*net).clone());
    }
    EXPECT_TRUE(results[0].equal(results[2]));
    EXPECT_TRUE(results[1].equal(results[2]));
  });
}

// ---- batch norm over all ranks ----

TEST(SyncBatchNorm, EqualsLibTorchsOnTheWholeBatch) {
  struct Net : torch::nn::Module {
    at::Tensor forward(const at::Tensor& x) { return norm(x * scale); }
    at::Tensor scale = register_parameter("scale", at::full({1}, 1.5, at::kDouble));
    torch::nn::BatchNorm2d norm = register_module("norm", torch::nn::BatchNorm2d(3));
    torch::nn::InstanceNorm2d instance = register_module("instance", torch::nn::InstanceNorm2d(3));
  };
  const auto make = [] {
    auto net = std::make_shared<Net>();
    net->to(at::kDouble);
    const at::NoGradGuard no_grad;
    net->norm->weight.copy_(at::tensor({0.5, 1.0, 2.0}, at::kDouble));
    net->norm->bias.copy_(at::tensor({0.1, 0.2, 0.3}, at::kDouble));
    return net;
  };
  // Ranks have 5, 1 and 2 rows; the mean is large against the deviations.
  const std::vector<std::int64_t> begins{0, 5, 6, 8};
  for (const bool mixed : {false, true})
    run_ranks(3, [&](Rank& rank) {
      test::join(rank);
      const at::Tensor all = test::wave({8, 3, 2, 2}, 1.0, 0.3) + (mixed ? 0 : 1000);
      auto reference = make();
      const at::Tensor expected = reference->forward(all);
      const at::Tensor factors = test::wave(all.sizes(), 1.0, 2.0);
      (expected * factors).sum().backward();

      Accelerator accelerator({.mixed_precision = mixed ? Precision::kBf16 : Precision::kNo,
                               .data_parallel = {.sync_batch_norm = true},
                               .progress = false});
      auto net = make();
      auto model = accelerator.prepare(net);
      const std::int64_t begin = begins[static_cast<std::size_t>(rank.index())];
      const std::int64_t rows = begins[static_cast<std::size_t>(rank.index()) + 1] - begin;
      const at::Tensor mine = all.narrow(0, begin, rows);
      const at::Tensor out = model(mine);
      EXPECT_TRUE(out.allclose(expected.narrow(0, begin, rows), 1e-8, 1e-8));
      EXPECT_TRUE(net->norm->running_mean.allclose(reference->norm->running_mean, 1e-10, 1e-12));
      EXPECT_TRUE(net->norm->running_var.allclose(reference->norm->running_var, 1e-8, 1e-12));
      EXPECT_EQ(net->norm->num_batches_tracked.item<std::int64_t>(), 1);
      accelerator.backward((out * factors.narrow(0, begin, rows)).sum());
      // The mean over ranks of the parts' sums.
      for (const char* name : {"norm.weight", "norm.bias", "scale"}) {
        const at::Tensor& got = net->named_parameters()[name].grad();
        EXPECT_TRUE((got * 3).allclose(reference->named_parameters()[name].grad(), 1e-6, 1e-7)) << name;
      }
      // What does not train goes by the running statistics, and other norms are left alone.
      net->eval();
      reference->eval();
      EXPECT_TRUE(model(mine).allclose(reference->forward(mine), 1e-7, 1e-8));
      net->train();
      const at::Tensor instance = model.run([&](Net& inside) { return inside.instance(mine); });
      EXPECT_TRUE(instance.equal(reference->instance(mine)));
    });
}

TEST(SyncBatchNorm, IsOffUnlessAskedFor) {
  run_ranks(2, [](Rank& rank) {
    test::join(rank);
    Accelerator accelerator({.progress = false});
    auto net = std::make_shared<torch::nn::BatchNorm1dImpl>(1);
    auto model = accelerator.prepare(net);
    const at::Tensor mine = at::tensor({1.0F, 3.0F}).view({2, 1}) + 10.0 * rank.index();
    EXPECT_NEAR(model(mine)[0].item<double>(), -1.0, 1e-4) << "by the rank's own mean and deviation";
  });
}

// ---- uneven inputs ----

struct JoinCase {
  bool divide_by_all;
  double expected;
};

TEST(Join, TakesInRanksWhoseDataHasEnded) {
  // 0..9 in batches of 4: rank 0 has 0..3 and 8, 9; rank 1 has 4..7. Sums 6 and 22, then 17 alone.
  for (const JoinCase& c : {JoinCase{true, -14.0 - 8.5}, {false, -14.0 - 17.0}})
    run_ranks(2, [&](Rank& rank) {
      test::join(rank);
      Accelerator accelerator({.progress = false});
      Scalar scalar;
      data::Loader ids(data::tensors(at::arange(10).to(at::kFloat)),
                       {.batch_size = 4, .even_batches = false});
      auto [model, optimizer, loader] = accelerator.prepare(scalar.net, scalar.sgd, ids);
      int batches = 0;
      {
        auto join = accelerator.join_uneven_inputs({.divide_by_initial_world_size = c.divide_by_all});
        for (auto& x : loader) {
          ++batches;
          accelerator.backward(model(x));
          optimizer.step();
          optimizer.zero_grad();
        }
      }
      EXPECT_EQ(batches, 2 - rank.index());
      EXPECT_EQ(scalar.net->w.item<double>(), c.expected);
      EXPECT_EQ(accelerator.updates(), 2) << "also on the rank that made one";
      expect_equal_on_all_ranks(accelerator, scalar.net->w);
      // And on they go.
      accelerator.backward(model(at::ones({1})));
      optimizer.step();
      EXPECT_EQ(scalar.net->w.item<double>(), c.expected - 1);
    });
}

TEST(Join, LeavesAllRanksWithTheSameStateOfEverything) {
  // Three ranks with 5, 0 and 2 batches: two models, Adam, batch norm, a schedule, windows and items.
  for (const Precision precision : {Precision::kNo, Precision::kFp16})
    run_ranks(3, [&](Rank& rank) {
      test::join(rank);
      Accelerator accelerator({.mixed_precision = precision,
                               .gradient_accumulation_steps = 2,
                               .grad_scaler = {.init_scale = 64, .growth_interval = 2},
                               .progress = false});
      struct Net : torch::nn::Module {
        at::Tensor forward(const at::Tensor& x) { return fc(norm(x)); }
        torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(3));
        torch::nn::Linear fc = register_module("fc", torch::nn::Linear(3, 2));
      };
      auto a = std::make_shared<Net>();
      auto b = std::make_shared<torch::nn::LinearImpl>(3, 2);
      torch::optim::Adam first(a->parameters(), torch::optim::AdamOptions(0.1));
      torch::optim::SGD second(b->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      optim::Lambda schedule(first, [](std::int64_t t) { return 1.0 / static_cast<double>(t + 1); });
      auto [model_a, model_b, adam, sgd, scheduler] = accelerator.prepare(a, b, first, second, schedule);
      const std::vector<int> batches{5, 0, 2};
      {
        auto join = accelerator.join_uneven_inputs(model_a, model_b);
        const int mine = batches[static_cast<std::size_t>(rank.index())];
        for (int i = 0; i < mine; ++i) {
          auto window = accelerator.accumulate(model_a, model_b);
          const at::Tensor x = test::wave({4, 3}, 1.0, 3 * rank.index() + i).to(at::kFloat);
          // An item mean in every window; the last of a loop without a loader may stay open.
          accelerator.backward(model_a(x).square().sum() + model_b(x).square().sum(), {.items = 4});
          adam.step();
          sgd.step();
          scheduler.step();
          adam.zero_grad();
          sgd.zero_grad();
        }
      }
      EXPECT_EQ(accelerator.updates(), 2);
      EXPECT_NEAR(first.param_groups()[0].options().get_lr(), 0.1 / 3, 1e-12);
      expect_equal_on_all_ranks(accelerator, test::flat(*a));
      expect_equal_on_all_ranks(accelerator, test::flat(*b));
      expect_equal_on_all_ranks(accelerator, a->norm->running_mean);
      const auto moments = [&] {
        std::vector<at::Tensor> all;
        for (const auto& parameter : a->parameters()) {
          auto& state =
              static_cast<torch::optim::AdamParamState&>(*first.state().at(parameter.unsafeGetTensorImpl()));
          EXPECT_EQ(state.step(), 2);
          all.push_back(state.exp_avg_sq().flatten());
        }
        return at::cat(all);
      };
      expect_equal_on_all_ranks(accelerator, moments());
      // A further step keeps them alike: scale, schedule and weights of items agree.
      for (int i = 0; i < 2; ++i) {
        auto window = accelerator.accumulate(model_a, model_b);
        const at::Tensor x = test::wave({4, 3}, 1.0, rank.index()).to(at::kFloat);
        accelerator.backward(model_a(x).square().sum() + model_b(x).square().sum(), {.items = 4});
        adam.step();
        sgd.step();
      }
      EXPECT_EQ(accelerator.updates(), 3);
      expect_equal_on_all_ranks(accelerator, test::flat(*a));
      expect_equal_on_all_ranks(accelerator, test::flat(*b));
    });
}

TEST(Join, HoldsEvenBatchesForItsTime) {
  run_ranks(2, [](Rank& rank) {
    test::join(rank);
    Accelerator accelerator({.progress = false});
    Scalar scalar;
    data::Loader ids(data::tensors(at::arange(10).to(at::kFloat)), {.batch_size = 4});
    auto [model, optimizer, loader] = accelerator.prepare(scalar.net, scalar.sgd, ids);
    {
      auto join = accelerator.join_uneven_inputs({.even_batches = false});
      EXPECT_EQ(loader.size(), 2 - rank.index());
      for (auto& x : loader) accelerator.backward(model(x));
      EXPECT_THAT(message_of([&] { (void)accelerator.join_uneven_inputs({}); }),
                  HasSubstr("another such block"));
    }
    EXPECT_EQ(loader.size(), 2);
  });
}

TEST(Join, RefusesBatchNormsOverAllRanks) {
  run_ranks(2, [](Rank& rank) {
    test::join(rank);
    Accelerator accelerator({.data_parallel = {.sync_batch_norm = true}, .progress = false});
    EXPECT_THAT(message_of([&] { (void)accelerator.join_uneven_inputs({}); }, ErrorCode::kUnavailable),
                HasSubstr("sync_batch_norm"));
  });
}

// ---- compression ----

/// The bytes that this rank gives to the reduction of a gradient of 64 x 48, and the gradient.
std::pair<std::int64_t, at::Tensor> reduce_once(Rank& rank, GradientCompression compression) {
  Accelerator accelerator({.data_parallel = {.compression = compression}, .progress = false});
  auto net = std::make_shared<torch::nn::LinearImpl>(torch::nn::LinearOptions(48, 64).bias(false));
  auto model = accelerator.prepare(net);
  for (int i = 0; i < 3; ++i) {  // the second pass also settles the buckets
    net->weight.mutable_grad().reset();
    const std::int64_t before = accelerator.group().bytes_given();
    accelerator.backward((model->weight * test::wave({64, 48}, 1.0, rank.index()).to(at::kFloat)).sum());
    if (i == 2) return {accelerator.group().bytes_given() - before, net->weight.grad().clone()};
  }
  return {};
}

TEST(Compression, To16BitsHalvesTheBytes) {
  run_ranks(2, [](Rank& rank) {
    test::join(rank);
    const auto wave = [](int of_rank) { return test::wave({64, 48}, 1.0, of_rank).to(at::kFloat); };
    const auto [plain_bytes, plain] = reduce_once(rank, GradientCompression::kNone);
    EXPECT_EQ(plain_bytes, 64 * 48 * 4);
    EXPECT_TRUE(plain.allclose((wave(0) + wave(1)) / 2, 0, 1e-7));
    for (const auto& [compression, type] : {std::pair(GradientCompression::kBf16, at::kBFloat16),
                                            std::pair(GradientCompression::kFp16, at::kHalf)}) {
      const auto [bytes, gradient] = reduce_once(rank, compression);
      EXPECT_EQ(bytes, 64 * 48 * 2);
      const at::Tensor expected =
          (wave(0) / 2).to(type).to(at::kFloat) + (wave(1) / 2).to(type).to(at::kFloat);
      EXPECT_TRUE(gradient.equal(expected.to(type).to(at::kFloat)));
    }
  });
}

TEST(PowerSgd, IsExactForAMatrixOfItsRankAndSendsFarLess) {
  run_ranks(2, [](Rank& rank) {
    test::join(rank);
    Accelerator accelerator({.data_parallel = {.compression = GradientCompression::kPowerSgd,
                                               .power_sgd = {.rank = 2, .start_step = 1}},
                             .progress = false});
    auto net = std::make_shared<torch::nn::LinearImpl>(48, 64);
    auto model = accelerator.prepare(net);
    // Of rank 2 in the mean: a different outer product on each rank.
    const auto of_rank = [](int r) {
      return at::outer(test::wave({64}, 1.0, r).to(at::kFloat),
                       test::wave({48}, 1.0, 3.0 + r).to(at::kFloat));
    };
    const at::Tensor expected = (of_rank(0) + of_rank(1)) / 2;
    for (int step = 0; step < 4; ++step) {
      for (const auto& parameter : net->parameters()) parameter.mutable_grad().reset();
      const std::int64_t before = accelerator.group().bytes_given();
      accelerator.backward((model->weight * of_rank(rank.index())).sum() + model->bias.sum() * rank.index());
      const std::int64_t bytes = accelerator.group().bytes_given() - before;
      EXPECT_TRUE(net->weight.grad().allclose(expected, 1e-4, 1e-5)) << step;
      EXPECT_TRUE(net->bias.grad().equal(at::full({64}, 0.5F)));
      if (step == 0) {
        EXPECT_EQ(bytes, (64 * 48 + 64) * 4) << "in full before start_step";
      } else if (step == 3) {
        EXPECT_EQ(bytes, ((64 + 48) * 2 + 64) * 4);
      }
    }
  });
}

TEST(PowerSgd, MakesUpForWhatItLeavesOut) {
  // A constant gradient of high rank under rank 1: the sum of what is applied follows the sum of what is due.
  const TemporaryFolder folder;
  run_ranks(2, [&](Rank& rank) {
    test::join(rank);
    const auto of_rank = [](int r) { return test::wave({12, 10}, 1.0, r).square().to(at::kFloat); };
    const at::Tensor due = (of_rank(0) + of_rank(1)) / 2;
    std::vector<at::Tensor> results;
    for (const bool resumed : {false, true}) {
      Accelerator accelerator(
          {.data_parallel = {.compression = GradientCompression::kPowerSgd, .power_sgd = {.start_step = 0}},
           .progress = false});
      auto net = std::make_shared<torch::nn::LinearImpl>(torch::nn::LinearOptions(10, 12).bias(false));
      {
        const at::NoGradGuard no_grad;
        net->weight.zero_();
      }
      torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(1.0));
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      if (resumed) accelerator.load_state(folder / "saved");
      for (int step = resumed ? 30 : 0; step < 60; ++step) {
        if (step == 30 && !resumed) accelerator.save_state(folder / "saved");
        accelerator.backward((model->weight * of_rank(rank.index())).sum());
        optimizer.step();
        optimizer.zero_grad();
      }
      expect_equal_on_all_ranks(accelerator, net->weight);
      EXPECT_LT((net->weight / -60 - due).norm().item<double>(), 0.1 * due.norm().item<double>());
      results.push_back(net->weight.detach().clone());
    }
    EXPECT_TRUE(results[0].equal(results[1])) << "what was left out is part of a checkpoint";
  });
}

TEST(PowerSgd, ForgetsAnInfinityWithItsStep) {
  run_ranks(2, [](Rank& rank) {
    test::join(rank);
    Accelerator accelerator(
        {.mixed_precision = Precision::kFp16,
         .data_parallel = {.compression = GradientCompression::kPowerSgd, .power_sgd = {.start_step = 0}},
         .grad_scaler = {.init_scale = 8},
         .progress = false});
    auto net = std::make_shared<torch::nn::LinearImpl>(torch::nn::LinearOptions(10, 12).bias(false));
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    for (int step = 0; step < 6; ++step) {
      const bool bad = step == 2 && rank.index() == 1;
      accelerator.backward((model->weight * test::wave({12, 10}, 1.0, 0.0).to(at::kFloat)).sum() *
                           (bad ? std::numeric_limits<double>::infinity() : 1.0));
      optimizer.step();
      EXPECT_EQ(optimizer.step_was_skipped(), step == 2) << step;
      optimizer.zero_grad();
    }
    EXPECT_TRUE(net->weight.isfinite().all().item<bool>());
  });
}

TEST(Compression, RefusesOptionsThatCannotWork) {
  run_ranks(2, [](Rank& rank) {
    test::join(rank);
    Accelerator accelerator(
        {.data_parallel = {.compression = GradientCompression::kPowerSgd, .power_sgd = {.rank = 0}},
         .progress = false});
    Scalar scalar;
    EXPECT_THAT(message_of([&] { (void)accelerator.prepare(scalar.net); }, ErrorCode::kInvalidArgument),
                HasSubstr("power_sgd has rank 0"));
  });
}

// ---- local SGD ----

TEST(LocalSgd, AveragesWeightsInsteadOfGradients) {
  run_ranks(2, [](Rank& rank) {
    test::join(rank);
    Accelerator accelerator({.progress = false});
    Scalar scalar;
    auto [model, optimizer] = accelerator.prepare(scalar.net, scalar.sgd);
    const auto step = [&, &model = model, &optimizer = optimizer] {
      accelerator.backward(model(at::full({1}, rank.index() == 0 ? 1.0 : 3.0)));
      optimizer.step();
      optimizer.zero_grad();
    };
    {
      LocalSgd local(accelerator, {.steps = 2}, model);
      const std::int64_t before = accelerator.group().bytes_given();
      step();
      local.step();
      EXPECT_EQ(scalar.net->w.item<double>(), rank.index() == 0 ? -1.0 : -3.0);
      EXPECT_EQ(accelerator.group().bytes_given(), before) << "nothing is sent";
      step();
      local.step();
      EXPECT_EQ(scalar.net->w.item<double>(), -4.0);
      step();
      local.step();
    }
    EXPECT_EQ(scalar.net->w.item<double>(), -6.0) << "what was not averaged is at the end";
    step();
    EXPECT_EQ(scalar.net->w.item<double>(), -8.0) << "gradients are reduced again";
    {
      LocalSgd off(accelerator, {.steps = 2, .enabled = false}, model);
      step();
      EXPECT_EQ(scalar.net->w.item<double>(), -10.0);
    }
    EXPECT_THROW(LocalSgd(accelerator, {.steps = 0}, model), Error);
  });
}

TEST(LocalSgd, AgreesOnUpdatesThatOverflow) {
  run_ranks(2, [](Rank& rank) {
    test::join(rank);
    Accelerator accelerator({.mixed_precision = Precision::kFp16, .progress = false});
    Scalar scalar;
    auto [model, optimizer] = accelerator.prepare(scalar.net, scalar.sgd);
    LocalSgd local(accelerator, {.steps = 4}, model);
    accelerator.backward(
        model(at::full({1}, rank.index() == 0 ? std::numeric_limits<double>::infinity() : 1.0)));
    optimizer.step();
    EXPECT_TRUE(optimizer.step_was_skipped()) << "or the ranks' counts of updates would part";
  });
}

// ---- debug mode ----

TEST(Debug, NamesWhatDiffersBetweenRanks) {
  for (const bool weights : {false, true})
    for (const bool debug : {true, false})
      run_ranks(2, [&](Rank& rank) {
        test::join(rank);
        Accelerator accelerator({.progress = false, .debug = debug});
        Mlp net(2, 3, 2);
        torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
        auto [model, optimizer] = accelerator.prepare(net, sgd);
        const auto step = [&, &model = model, &optimizer = optimizer](bool tamper) {
          accelerator.backward(model(at::ones({1, 2})).sum());
          const at::NoGradGuard no_grad;
          if (tamper) (weights ? net->fc1->bias : net->fc2->weight.mutable_grad()).add_(1);
          const std::int64_t before = accelerator.group().bytes_given();
          optimizer.step();
          optimizer.zero_grad();
          return accelerator.group().bytes_given() - before;
        };
        const std::int64_t sent = step(false);
        if (!debug) {
          EXPECT_EQ(sent, 0) << "nothing is compared";
          step(rank.index() == 1);
          return;
        }
        EXPECT_THAT(message_of([&] { step(rank.index() == 1); }, ErrorCode::kMismatch),
                    AllOf(HasSubstr("update 2"), HasSubstr("on rank 1 differ from rank 0's"),
                          HasSubstr(weights ? "weights of parameter 'fc1.bias'"
                                            : "gradient of parameter 'fc2.weight'")));
      });
}

}  // namespace
}  // namespace hasten

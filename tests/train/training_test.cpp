#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <set>
#include <sstream>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/optim/adam.h>
#include <torch/optim/lbfgs.h>

#include <hasten/base/files.h>

#include "support/errors.h"
#include "support/temporary_folder.h"
#include "train/support.h"

namespace hasten {
namespace {

using test::message_of;

using test::Mlp;
using test::Rank;
using test::run_ranks;
using test::Scalar;
using test::TemporaryFolder;
using testing::HasSubstr;
using torch::nn::functional::cross_entropy;

/// Weights after 20 SGD steps on 1280 samples, 64 a step over all processes.
at::Tensor train_twenty_steps(Rank& rank, std::int64_t batch_size) {
  test::join(rank);
  Accelerator accelerator({.progress = false});
  Mlp net(8, 16, 3);
  if (rank.index() != 0) {
    // Rank 0's weights must win.
    const torch::NoGradGuard no_grad;
    for (const auto& parameter : net->parameters()) parameter.zero_();
  }
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  data::Loader train(data::tensors(test::wave({1280, 8}, 1.0, 0.5).to(at::kFloat), at::arange(1280) % 3),
                     {.batch_size = batch_size, .shuffle = true, .seed = 5});
  auto [model, optimizer, loader] = accelerator.prepare(net, sgd, train);
  for (auto& [x, y] : loader) {
    accelerator.backward(cross_entropy(model(x), y));
    optimizer.step();
    optimizer.zero_grad();
  }
  EXPECT_EQ(accelerator.updates(), 20);
  return test::flat(*net);
}

TEST(Training, OneProcessAndTwoGiveTheSameWeights) {
  const auto bytes = [](const at::Tensor& t) {
    return std::string(static_cast<const char*>(t.const_data_ptr()), t.nbytes());
  };
  const auto alone = run_ranks(1, [&](Rank& rank) { rank.report(bytes(train_twenty_steps(rank, 64))); });
  const auto both = run_ranks(2, [&](Rank& rank) { rank.report(bytes(train_twenty_steps(rank, 32))); });
  ASSERT_EQ(alone.at(0).size(), both.at(0).size());
  ASSERT_GT(alone.at(0).size(), 0U);
  EXPECT_EQ(both[0], both[1]) << "the ranks' weights must have the same bits";
  const auto* a = reinterpret_cast<const float*>(alone[0].data());
  const auto* b = reinterpret_cast<const float*>(both[0].data());
  for (std::size_t i = 0; i < alone[0].size() / sizeof(float); ++i) EXPECT_NEAR(a[i], b[i], 1e-6);
}

TEST(Training, AddsUpSeveralBackwardPassesAStep) {
  run_ranks(2, [](Rank& rank) {
    test::join(rank);
    Accelerator accelerator({.progress = false});
    auto net = std::make_shared<torch::nn::LinearImpl>(torch::nn::LinearOptions(1, 1).bias(false));
    auto model = accelerator.prepare(net);
    const auto loss = model(at::full({1, 1}, 1.0 + rank.index())).sum();
    accelerator.backward(loss, {.retain_graph = true});
    EXPECT_EQ(net->weight.grad().item<double>(), 1.5);
    accelerator.backward(loss);
    EXPECT_EQ(net->weight.grad().item<double>(), 3.0);
    {
      auto local = accelerator.no_sync(model);
      accelerator.backward(model(at::full({1, 1}, 1.0 + rank.index())).sum());
    }
    EXPECT_EQ(net->weight.grad().item<double>(), 4.0 + rank.index());
  });
}

TEST(Training, ReportsAParameterThatOneRankDoesNotUse) {
  for (const bool search : {false, true}) {
    run_ranks(2, [search](Rank& rank) {
      test::join(rank);
      Accelerator accelerator({.data_parallel = {.find_unused_parameters = search},
                               .progress = false,
                               .timeout = std::chrono::seconds(5)});
      struct TwoImpl : torch::nn::Module {
        TwoImpl() : a(register_parameter("a", at::ones({1}))), b(register_parameter("b", at::ones({1}))) {}
        at::Tensor forward(bool both) { return both ? (a + 4 * b).sum() : a.sum(); }
        at::Tensor a, b;
      };
      auto net = std::make_shared<TwoImpl>();
      auto model = accelerator.prepare(net);
      if (search) {
        accelerator.backward(model(rank.index() == 0));
        EXPECT_EQ(net->b.grad().item<double>(), 2.0);
      } else if (rank.index() == 1) {
        EXPECT_THAT(
            message_of([&] { accelerator.backward(model(false)); }),
            testing::AllOf(HasSubstr("rank 1"), HasSubstr("'b'"), HasSubstr("find_unused_parameters")));
      } else {
        EXPECT_ANY_THROW(accelerator.backward(model(true)));
      }
    });
  }
}

// A generator and a discriminator, each with its optimizer: one loss reaches both models, the other only one.
TEST(Training, TrainsTwoModelsAgainstEachOther) {
  std::vector<std::string> weights = run_ranks(2, [](Rank& rank) {
    test::join(rank);
    Accelerator accelerator({.progress = false});
    Mlp generator(4, 8, 2);
    Mlp discriminator(2, 8, 1);
    torch::optim::SGD generator_sgd(generator->parameters(), torch::optim::SGDOptions(0.05));
    torch::optim::Adam discriminator_adam(discriminator->parameters(), torch::optim::AdamOptions(0.01));
    auto [discriminator_step, g, generator_step, d] =
        accelerator.prepare(discriminator_adam, generator, generator_sgd, discriminator);
    const auto softplus = [](const at::Tensor& x) { return (x.exp() + 1).log().mean(); };
    double first = 0;
    double last = 0;
    for (int i = 0; i < 60; ++i) {
      const auto noise = test::wave({16, 4}, 1.0, i + 0.5 * rank.index()).to(at::kFloat);
      const auto real = test::wave({16, 2}, 0.5, 2.0 * i + rank.index()).to(at::kFloat) + 2;
      const auto fake = g(noise);
      accelerator.backward(softplus(-d(real)));
      const auto fake_loss = softplus(d(fake.detach()));
      accelerator.backward(fake_loss);
      discriminator_step.step();
      discriminator_step.zero_grad();
      accelerator.backward(softplus(-d(fake)));
      generator_step.step();
      generator_step.zero_grad();
      discriminator_step.zero_grad();
      if (i == 0) first = fake_loss.item<double>();
      last = fake_loss.item<double>();
    }
    EXPECT_NE(first, last);
    const at::Tensor all = at::cat({test::flat(*generator), test::flat(*discriminator)});
    EXPECT_TRUE(all.isfinite().all().item<bool>());
    rank.report(std::string(static_cast<const char*>(all.const_data_ptr()), all.nbytes()));
  });
  EXPECT_EQ(weights.at(0), weights.at(1));
}

TEST(Training, UsesTheRatesOfItsScheduleUpdateByUpdate) {
  // 16 samples in 4 updates: on one process in windows of two, on two processes one batch an update.
  struct Case {
    int processes;
    ScheduleUnit unit;
    double end;  // the step of the schedule at which the rate is 0
  };
  for (const Case& c : {Case{1, ScheduleUnit::kUpdates, 4}, Case{2, ScheduleUnit::kUpdates, 4},
                        Case{2, ScheduleUnit::kSingleProcessBatches, 8}})
    run_ranks(c.processes, [&](Rank& rank) {
      test::join(rank);
      Accelerator accelerator(
          {.gradient_accumulation_steps = 2 / c.processes, .progress = false, .schedule_unit = c.unit});
      Scalar scalar;
      optim::Lambda schedule(scalar.sgd, [&](std::int64_t t) { return 1 - static_cast<double>(t) / c.end; });
      data::Loader train(data::tensors(at::ones({16})), {.batch_size = 2});
      auto [model, optimizer, loader, scheduler] =
          accelerator.prepare(scalar.net, scalar.sgd, train, schedule);
      const auto rate = [&] { return scalar.sgd.param_groups()[0].options().get_lr(); };
      std::vector<double> used;
      for (auto& x : loader) {
        auto window = accelerator.accumulate(model);
        const double before = rate();
        accelerator.backward(model(x));
        optimizer.step();
        EXPECT_EQ(rate(), before) << "a rate moves with its schedule alone";
        if (accelerator.sync_gradients()) used.push_back(before);
        scheduler.step();
        optimizer.zero_grad();
      }
      EXPECT_EQ(used, (std::vector<double>{1, 0.75, 0.5, 0.25}));
      EXPECT_EQ(rate(), 0.0);
    });
}

TEST(Training, FollowsAMetricAlikeOnAllRanks) {
  const TemporaryFolder folder;
  run_ranks(2, [&](Rank& rank) {
    test::join(rank);
    for (const bool resumed : {false, true}) {
      Accelerator accelerator({.progress = false});
      Scalar scalar;
      optim::ReduceOnPlateau plateau(scalar.sgd, {.factor = 0.5, .patience = 1});
      auto [model, optimizer, follow] = accelerator.prepare(scalar.net, scalar.sgd, plateau);
      const auto rate = [&] { return scalar.sgd.param_groups()[0].options().get_lr(); };
      if (!resumed) {
        // Rank 1's own metrics always improve; their mean is 1, 1.
        EXPECT_FALSE(follow.step(rank.index() == 0 ? 0.0 : 2.0));
        EXPECT_FALSE(follow.step(rank.index() == 0 ? 1.0 : 1.0));
        accelerator.save_state(folder / "saved");
      } else {
        accelerator.load_state(folder / "saved");
        EXPECT_EQ(plateau.state().best, 1.0);
      }
      EXPECT_TRUE(follow.step(rank.index() == 0 ? 2.0 : 0.5));
      EXPECT_EQ(rate(), 0.5);
    }
  });
}

TEST(Training, RunsAnOptimizerThatNeedsAClosure) {
  run_ranks(1, [](Rank& rank) {
    test::join(rank);
    Accelerator accelerator({.progress = false});
    auto net = std::make_shared<torch::nn::LinearImpl>(torch::nn::LinearOptions(2, 1).bias(false));
    torch::optim::LBFGS lbfgs(net->parameters(), torch::optim::LBFGSOptions(0.5).max_iter(30));
    auto [model, optimizer] = accelerator.prepare(net, lbfgs);
    const auto target = at::full({1, 2}, 3.0);
    for (int i = 0; i < 5; ++i)
      optimizer.step([&, &model = model, &optimizer = optimizer] {
        optimizer.zero_grad();
        const auto loss = (model(at::eye(2)).t() - target).square().sum();
        accelerator.backward(loss);
        return loss;
      });
    EXPECT_TRUE(net->weight.allclose(target, 1e-4, 1e-4));
  });
}

// A network as LibTorch's users write them: a view flattens the convolution's result, which channels-last
// data forbid.
struct ViewsImpl : torch::nn::Module {
  explicit ViewsImpl(bool views)
      : views(views),
        conv(register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 8, 3)))),
        norm(register_module("norm", torch::nn::BatchNorm2d(8))) {}
  at::Tensor forward(at::Tensor x) {
    ++passes;
    x = norm(conv(x));
    return views ? x.view({x.size(0), -1}) : x.flatten(1);
  }
  bool views;
  torch::nn::Conv2d conv;
  torch::nn::BatchNorm2d norm;
  int passes = 0;
};

TEST(Training, ChoosesALayoutThatTheModelCanWorkWith) {
  for (const bool views : {true, false}) {
    run_ranks(2, [views](Rank& rank) {
      test::join(rank);
      Accelerator accelerator({.progress = false});
      auto net = std::make_shared<ViewsImpl>(views);
      auto plain = std::make_shared<ViewsImpl>(views);
      auto model = accelerator.prepare(net);
      const torch::NoGradGuard no_grad;
      plain->conv->weight.copy_(net->conv->weight);
      plain->conv->bias.copy_(net->conv->bias);
      const at::Tensor x = test::wave({2, 4, 6, 6}, 1.0, rank.index()).to(at::kFloat);
      EXPECT_TRUE(model(x).allclose(plain->forward(x), 1e-5, 1e-6));
      EXPECT_EQ(net->conv->weight.is_contiguous(), views);
      EXPECT_EQ(net->passes, views ? 2 : 1);
      EXPECT_TRUE(net->norm->running_mean.allclose(plain->norm->running_mean)) << "counted once";
      EXPECT_EQ(net->norm->num_batches_tracked.item<std::int64_t>(), 1);
    });
  }
}

TEST(Training, ClipsGradients) {
  run_ranks(1, [](Rank& rank) {
    test::join(rank);
    Accelerator accelerator({.progress = false});
    auto net = std::make_shared<torch::nn::LinearImpl>(torch::nn::LinearOptions(2, 1).bias(false));
    auto model = accelerator.prepare(net);
    const auto gradient = at::tensor({3.0F, 4.0F}).reshape({1, 2});
    accelerator.backward(model(gradient).sum());
    EXPECT_NEAR(accelerator.clip_grad_norm_(model, 1.0).item<double>(), 5.0, 1e-6);
    EXPECT_TRUE(net->weight.grad().allclose(gradient / 5, 1e-5));
    EXPECT_NEAR(
        accelerator.clip_grad_norm_(model, 1.0, std::numeric_limits<double>::infinity()).item<double>(), 0.8,
        1e-5);
    accelerator.clip_grad_value_(model, 0.7);
    EXPECT_NEAR(net->weight.grad().max().item<double>(), 0.7, 1e-6);
    EXPECT_THROW(accelerator.clip_grad_norm_(model, -1.0), Error);
  });
}

TEST(Training, NamesGradientsThatAreNotFiniteWhenAsked) {
  run_ranks(2, [](Rank& rank) {
    test::join(rank);
    Accelerator accelerator({.progress = false});
    Mlp net(2, 3, 2);
    auto model = accelerator.prepare(net);
    // Only rank 1's loss is bad, and all ranks say so.
    accelerator.backward(model(at::ones({1, 2})).sum() * (rank.index() == 1 ? std::nan("") : 1.0));
    const at::Tensor before = net->fc1->bias.grad().clone();
    EXPECT_THAT(message_of([&] { accelerator.clip_grad_norm_(model, 1.0, 2.0, /*error_if_nonfinite=*/true); },
                           ErrorCode::kFailedPrecondition),
                testing::AllOf(HasSubstr("norm of the gradients is"), HasSubstr("nan"),
                               HasSubstr("'fc1.weight'"), HasSubstr("'fc2.bias'")));
    EXPECT_TRUE(net->fc1->bias.grad().allclose(before, 0, 0, /*equal_nan=*/true)) << "nothing was changed";
  });
}

TEST(Training, CountsEachSampleOnceInAnEvaluation) {
  struct Case {
    std::int64_t samples, batch_size;
    bool drop_last;
    std::int64_t expected;
  };
  for (const Case& c : {Case{16, 4, false, 16},
                        {9, 5, false, 9},
                        {9, 5, true, 0},
                        {11, 5, true, 10},
                        {11, 5, false, 11},
                        {1, 4, false, 1},
                        {10, 4, false, 10}}) {
    run_ranks(2, [&](Rank& rank) {
      test::join(rank);
      Accelerator accelerator({.progress = false});
      data::Loader ids(data::tensors(at::arange(c.samples)),
                       {.batch_size = c.batch_size, .drop_last = c.drop_last});
      auto loader = accelerator.prepare(ids);
      std::vector<at::Tensor> seen{at::arange(0)};
      for (auto& batch : loader) seen.push_back(accelerator.gather_for_metrics(batch));
      EXPECT_TRUE(at::cat(seen).equal(at::arange(c.expected))) << c.samples << " by " << c.batch_size;
    });
  }
}

/// The ids that this rank's loop over a prepared loader is given, batch by batch.
std::vector<std::vector<std::int64_t>> batches_of(Accelerator& accelerator, std::int64_t count,
                                                  const data::LoaderOptions& options,
                                                  std::int64_t epoch = 0) {
  data::Loader ids(data::tensors(at::arange(count)), options);
  auto loader = accelerator.prepare(ids);
  loader->set_epoch(epoch);
  std::vector<std::vector<std::int64_t>> batches;
  for (auto& batch : loader)
    batches.emplace_back(batch.template const_data_ptr<std::int64_t>(),
                         batch.template const_data_ptr<std::int64_t>() + batch.numel());
  EXPECT_EQ(static_cast<std::int64_t>(batches.size()), loader->size()) << "as many batches as were announced";
  return batches;
}

TEST(Training, DividesEachEpochAmongRanksInItsOwnOrder) {
  using Ids = std::vector<std::vector<std::int64_t>>;
  std::vector<std::vector<std::string>> reports;
  for (int life = 0; life < 2; ++life)
    reports.push_back(run_ranks(2, [](Rank& rank) {
      test::join(rank);
      Accelerator accelerator({.progress = false});
      std::string orders;
      for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
        std::set<std::int64_t> seen;
        std::string order;
        for (const auto& batch :
             batches_of(accelerator, 8, {.batch_size = 1, .shuffle = true, .seed = 7}, epoch)) {
          const at::Tensor both = accelerator.gather(at::tensor(batch));
          for (std::int64_t i = 0; i < 2; ++i) {
            seen.insert(both[i].item<std::int64_t>());
            order += std::to_string(both[i].item<std::int64_t>()) + " ";
          }
        }
        EXPECT_EQ(seen.size(), 8U) << "each id on one rank";
        orders += order + "\n";
      }
      rank.report(orders);
      // What is announced is what comes, also where steps are divided and the ends are uneven.
      EXPECT_EQ(batches_of(accelerator, 3, {.batch_size = 2, .split_batches = true, .even_batches = false}),
                rank.index() == 0 ? (Ids{{0}, {2}}) : (Ids{{1}}));
      const auto even = batches_of(accelerator, 100, {.batch_size = 10, .split_batches = true});
      EXPECT_EQ(even.size(), 10U);
      for (const auto& batch : even) EXPECT_EQ(batch.size(), 5U);
    }));
  EXPECT_EQ(reports[0], reports[1]) << "the same seed and epoch give the same order in another process";
  EXPECT_EQ(reports[0][0], reports[0][1]);
  std::istringstream lines(reports[0][0]);
  std::set<std::string> different;
  for (std::string line; std::getline(lines, line);) different.insert(line);
  EXPECT_EQ(different.size(), 3U) << "each epoch has an order of its own";
}

TEST(Training, CombinesNestedBatchesOverRanks) {
  run_ranks(2, [](Rank& rank) {
    test::join(rank);
    Accelerator accelerator({.progress = false});
    const auto mine = at::full({1 + rank.index()}, 1.0 + rank.index());
    const std::map<std::string, at::Tensor> batch{{"a", at::full({}, 1.0 + rank.index())}};
    EXPECT_TRUE(accelerator.gather(batch).at("a").equal(at::tensor({1.0F, 2.0F})));
    EXPECT_EQ(accelerator.reduce(batch, comm::ReduceOp::kMean).at("a").item<double>(), 1.5);
    const auto padded = accelerator.pad_across_processes(mine, 0, -100);
    EXPECT_TRUE(accelerator.gather(padded).equal(at::tensor({1.0F, -100.0F, 2.0F, 2.0F})));
    EXPECT_THAT(message_of([&] { (void)accelerator.gather(mine); }),
                testing::AllOf(HasSubstr("1"), HasSubstr("2")));
  });
}

TEST(Training, KnowsItsPlaceAmongTheProcesses) {
  test::TemporaryFolder folder;
  run_ranks(2, [&](Rank& rank) {
    test::join(rank);
    Accelerator accelerator({.progress = false});
    EXPECT_EQ(accelerator.process_index(), rank.index());
    EXPECT_EQ(accelerator.num_processes(), 2);
    EXPECT_EQ(accelerator.is_main_process(), rank.index() == 0);
    EXPECT_EQ(accelerator.is_local_main_process(), rank.index() == 0);
    EXPECT_EQ(accelerator.is_last_process(), rank.index() == 1);
    EXPECT_EQ(accelerator.local_process_index(), rank.index());
    {
      auto first = accelerator.main_process_first();
      if (accelerator.is_main_process()) files::write_atomically(folder / "made", "by the main process");
      EXPECT_TRUE(std::filesystem::exists(folder / "made"));
    }
    int calls = 0;
    accelerator.on_main_process([&] { ++calls; });
    accelerator.on_local_main_process([&] { ++calls; });
    EXPECT_EQ(calls, rank.index() == 0 ? 2 : 0);
    accelerator.on_last_process([&] { calls += 10; });
    accelerator.on_process([&] { calls += 100; }, 1);
    accelerator.on_local_process([&] { calls += 1000; }, 1);
    EXPECT_EQ(calls, rank.index() == 0 ? 2 : 1110);
    {
      auto first = accelerator.local_main_process_first();
      if (accelerator.is_local_main_process()) files::write_atomically(folder / "local", "first");
      EXPECT_TRUE(std::filesystem::exists(folder / "local"));
    }
    accelerator.wait_for_everyone();
  });
}

TEST(Prepare, NamesWhatCannotBePrepared) {
  run_ranks(1, [](Rank& rank) {
    test::join(rank);
    Accelerator accelerator({.progress = false});
    Mlp net(8, 16, 3);
    Mlp other(8, 16, 3);
    torch::optim::SGD foreign(other->parameters(), torch::optim::SGDOptions(0.1));
    EXPECT_THAT(
        message_of([&] { (void)accelerator.prepare(net, foreign); }),
        testing::AllOf(HasSubstr("parameter 0"), HasSubstr("[16, 8]"), HasSubstr("no prepared model")));
    auto model = accelerator.prepare(net);
    Accelerator second({.progress = false});
    EXPECT_THAT(message_of([&] { (void)second.prepare(net); }), HasSubstr("another Accelerator"));
    EXPECT_THAT(message_of([&] { accelerator.backward(at::ones({1})); }), HasSubstr("does not depend"));
    EXPECT_THAT(message_of([&] { Accelerator({.gradient_accumulation_steps = 0}); }),
                HasSubstr("gradient_accumulation_steps is 0"));
    EXPECT_THAT(message_of([&] { Accelerator({.log_with = {"tensorboard"}}); }), HasSubstr("project.dir"));
  });
}

TEST(Accelerator, CanBeMadeAgainInTheSameProcess) {
  run_ranks(2, [](Rank& rank) {
    test::join(rank);
    for (int life = 0; life < 3; ++life) {
      Accelerator accelerator({.progress = false});
      Accelerator beside({.progress = false});
      const at::Tensor mine = at::full({2}, rank.index() + 1.0);
      EXPECT_EQ(accelerator.reduce(mine).sum().item<double>(), 6);
      EXPECT_EQ(beside.gather(mine).sum().item<double>(), 6);
    }
  });
}

TEST(Prepare, GivesTheSameRecordForTheSameThing) {
  run_ranks(1, [](Rank& rank) {
    test::join(rank);
    Accelerator accelerator({.progress = false});
    Mlp net(8, 16, 3);
    auto model = accelerator.prepare(net);
    auto again = accelerator.prepare(net);
    EXPECT_EQ(model.record(), again.record());
    EXPECT_EQ(accelerator.unwrap_model(model), net.ptr());
    model = {};
    again = {};
    Accelerator second({.progress = false});
    EXPECT_NO_THROW((void)second.prepare(net)) << "a model whose handles are gone is free again";
  });
}

TEST(Prepare, NoticesModelsThatDifferBetweenRanks) {
  run_ranks(2, [](Rank& rank) {
    test::join(rank);
    Accelerator accelerator({.progress = false});
    Mlp net(8, 16 + rank.index(), 3);
    EXPECT_THAT(message_of([&] { (void)accelerator.prepare(net); }),
                testing::AllOf(HasSubstr("fc1.weight [16, 8]"), HasSubstr("fc1.weight [17, 8]"),
                               HasSubstr("rank 1")));
  });
}

}  // namespace
}  // namespace hasten

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <optional>

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

/// The weight after epochs over x = 1..5 in windows of two, from 0, and the number of updates.
std::pair<double, std::int64_t> train_on_five(int epochs, AcceleratorOptions options) {
  options.gradient_accumulation_steps = 2;
  options.progress = false;
  Accelerator accelerator(options);
  Scalar scalar;
  data::Loader train(data::tensors(at::arange(1, 6).to(at::kFloat)), {});
  auto [model, optimizer, loader] = accelerator.prepare(scalar.net, scalar.sgd, train);
  for (int epoch = 0; epoch < epochs; ++epoch)
    for (auto& x : loader) {
      auto window = accelerator.accumulate(model);
      accelerator.backward(model(x));
      optimizer.step();
      optimizer.zero_grad();
    }
  accelerator.end_training();
  return {scalar.net->w.item<double>(), accelerator.updates()};
}

TEST(Accumulation, WeightsAShortWindowAsItIsTold) {
  run_ranks(1, [](Rank& rank) {
    test::join(rank);
    EXPECT_EQ(train_on_five(1, {.short_window = ShortWindow::kMean}), std::pair(-10.0, std::int64_t{3}));
    EXPECT_EQ(train_on_five(1, {.short_window = ShortWindow::kDivideByAll}),
              std::pair(-7.5, std::int64_t{3}));
  });
}

TEST(Accumulation, DividesByTheItemsOfAllMicroBatchesAndRanks) {
  // Windows of two micro-batches; items by window, rank and micro-batch. The last window is short.
  const std::vector<std::vector<std::vector<std::vector<double>>>> windows{
      {{{4}, {0, 0, 0}}, {{}, {1, 2}}},                    // 7 / 6
      {{{1, 1, 1, 1, 1}, {}}, {{9}, {1, 2, 3, 4, 5, 6}}},  // 35 / 12
      {{{}, {}}, {{}, {}}},                                // no item at all
      {{{8}}, {{1, 1, 1}}}};                               // 11 / 4
  const std::vector<double> expected{7.0 / 6, 35.0 / 12, 0, 11.0 / 4};
  for (const int processes : {1, 2}) {
    for (const Precision precision : {Precision::kNo, Precision::kFp16}) {
      run_ranks(processes, [&](Rank& rank) {
        test::join(rank);
        Scalar scalar;
        // One process takes the micro-batches of both ranks, one after another.
        Accelerator accelerator({.mixed_precision = precision,
                                 .gradient_accumulation_steps = processes == 1 ? 4 : 2,
                                 .progress = false});
        auto [model, optimizer] = accelerator.prepare(scalar.net, scalar.sgd);
        double before = 0;
        for (std::size_t i = 0; i < windows.size(); ++i) {
          std::vector<std::vector<double>> mine;
          for (int r = 0; r < 2; ++r)
            if (processes == 1 || r == rank.index())
              mine.insert(mine.end(), windows[i][r].begin(), windows[i][r].end());
          // The last window is short because its data ends.
          const auto batches = static_cast<std::int64_t>(mine.size());
          data::Loader numbers(data::tensors(at::arange(batches * processes)), {});
          auto loader = accelerator.prepare(numbers);
          std::size_t number = 0;
          for ([[maybe_unused]] auto& batch : loader) {
            const auto& items = mine.at(number++);
            auto window = accelerator.accumulate(model);
            accelerator.backward(model(at::tensor(items, at::kFloat)),
                                 {.items = static_cast<std::int64_t>(items.size())});
            if (accelerator.sync_gradients()) {
              EXPECT_NEAR(accelerator.clip_grad_norm_(model, 1e9).item<double>(), expected[i], 2e-3);
            }
            optimizer.step();
            optimizer.zero_grad();
          }
          const double now = scalar.net->w.item<double>();
          EXPECT_NEAR(before - now, expected[i], precision == Precision::kNo ? 1e-6 : 2e-3) << "window " << i;
          before = now;
        }
      });
    }
  }
}

TEST(Accumulation, DividesByItemsWithTheSameBitsAfterAResume) {
  const TemporaryFolder folder;
  run_ranks(2, [&](Rank& rank) {
    test::join(rank);
    std::vector<at::Tensor> results;
    for (const bool resumed : {false, true}) {
      Accelerator accelerator({.progress = false});
      Mlp net(8, 16, 3);
      torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      const auto step = [&, &model = model, &optimizer = optimizer](std::int64_t items) {
        accelerator.backward(model(test::wave({items, 8}, 1.0, rank.index()).to(at::kFloat)).square().sum(),
                             {.items = items});
        optimizer.step();
        optimizer.zero_grad();
      };
      if (resumed) {
        accelerator.load_state(folder / "saved");
      } else {
        step(7);
        accelerator.save_state(folder / "saved");
      }
      step(11 + rank.index());
      results.push_back(test::flat(*net).clone());
    }
    EXPECT_TRUE(results[0].equal(results[1]));
  });
}

TEST(Accumulation, LetsAWindowGoOnWithTheNextEpochWhenTold) {
  const TemporaryFolder folder;
  run_ranks(1, [&](Rank& rank) {
    test::join(rank);
    // (1 + 2) / 2 + (3 + 4) / 2 + 5, twice.
    EXPECT_EQ(train_on_five(2, {}), std::pair(-20.0, std::int64_t{6}));
    // (1 + 2) / 2 + (3 + 4) / 2 + (5 + 1) / 2 + (2 + 3) / 2 + (4 + 5) / 2
    EXPECT_EQ(train_on_five(2, {.sync_with_dataloader = false}), std::pair(-15.0, std::int64_t{5}));
    // A run that ends within a window saves what its updates made.
    Accelerator accelerator({.gradient_accumulation_steps = 2,
                             .project = {.dir = folder.path(), .checkpoint_every = 10},
                             .progress = false});
    Scalar scalar;
    data::Loader train(data::tensors(at::arange(1, 6).to(at::kFloat)), {});
    auto [model, optimizer, loader] = accelerator.prepare(scalar.net, scalar.sgd, train);
    for (auto& x : loader) {
      auto window = accelerator.accumulate(model);
      accelerator.backward(model(x));
      optimizer.step();
      optimizer.zero_grad();
      if (loader->position() == 3) break;
    }
    accelerator.end_training();
    EXPECT_TRUE(std::filesystem::exists(folder / "checkpoints" / "checkpoint_0"));
  });
}

TEST(Accumulation, ReducesEachMicroBatchWhenTold) {
  run_ranks(2, [](Rank& rank) {
    test::join(rank);
    Accelerator accelerator({.gradient_accumulation_steps = 2, .progress = false, .sync_each_batch = true});
    Scalar scalar;
    auto [model, optimizer] = accelerator.prepare(scalar.net, scalar.sgd);
    // x is 1, 2 on rank 0 and 3, 4 on rank 1; the losses of a window of two are weighted by a half.
    for (int i = 1; i <= 2; ++i) {
      auto window = accelerator.accumulate(model);
      accelerator.backward(model(at::full({1}, 2.0 * rank.index() + i)));
      EXPECT_EQ(scalar.net->w.grad().item<double>(), i == 1 ? 1.0 : 2.5);
      EXPECT_EQ(accelerator.sync_gradients(), i == 2);
      optimizer.step();
    }
    EXPECT_EQ(scalar.net->w.item<double>(), -2.5);
  });
}

TEST(Accumulation, CountsScheduleStepsInTheUnitItIsTold) {
  // After 3 micro-batches in windows of two on two processes, the last window short: 2 updates.
  struct Case {
    AcceleratorOptions options;
    bool split;
    std::int64_t steps;
  };
  for (const Case& unit :
       {Case{{}, false, 2}, Case{{.schedule_unit = ScheduleUnit::kSingleProcessBatches}, false, 4},
        Case{{.schedule_unit = ScheduleUnit::kSingleProcessBatches}, true, 2},
        Case{{.step_scheduler_with_optimizer = false}, false, 3}})
    run_ranks(2, [&](Rank& rank) {
      test::join(rank);
      AcceleratorOptions options = unit.options;
      options.gradient_accumulation_steps = 2;
      options.progress = false;
      Accelerator accelerator(options);
      Scalar scalar;
      optim::Lambda schedule(scalar.sgd, [](std::int64_t t) { return 1.0 + static_cast<double>(t); });
      data::Loader train(data::tensors(at::ones({6})),
                         {.batch_size = unit.split ? 2 : 1, .split_batches = unit.split});
      auto [model, optimizer, loader, scheduler] =
          accelerator.prepare(scalar.net, scalar.sgd, train, schedule);
      for (auto& x : loader) {
        auto window = accelerator.accumulate(model);
        accelerator.backward(model(x));
        optimizer.step();
        scheduler.step();
        optimizer.zero_grad();
      }
      EXPECT_EQ(accelerator.updates(), 2);
      EXPECT_EQ(scalar.sgd.param_groups()[0].options().get_lr(), 1.0 + static_cast<double>(unit.steps));
    });
}

TEST(Accumulation, DividesSeveralLossesOfAStepByTheirItems) {
  run_ranks(2, [](Rank& rank) {
    test::join(rank);
    Accelerator accelerator({.progress = false});
    Scalar scalar;
    auto [model, optimizer] = accelerator.prepare(scalar.net, scalar.sgd);
    for (int step = 1; step <= 2; ++step) {
      // Together 5 items on rank 0, and 1 on rank 1: (1 + 2 + 3 + 4 + 5 + 9) / 6.
      if (rank.index() == 0) {
        accelerator.backward(model(at::tensor({1.0F, 2.0F})), {.items = 2});
        accelerator.backward(model(at::tensor({3.0F, 4.0F, 5.0F})), {.items = 3});
      } else {
        accelerator.backward(model(at::tensor({9.0F})), {.items = 1});
        accelerator.backward(model(at::zeros({0})), {.items = 0});
      }
      optimizer.step();
      EXPECT_NEAR(scalar.net->w.item<double>(), -4.0 * step, 1e-5);
      optimizer.zero_grad();
    }
    accelerator.backward(model(at::ones({1})), {.items = 1});
    EXPECT_THAT(message_of([&] { accelerator.backward(model(at::ones({1}))); }),
                HasSubstr("in all of them or in none"));
    EXPECT_THAT(message_of([&] { accelerator.backward(model(at::ones({1})), {.items = -1}); }),
                HasSubstr("number of items is -1"));
  });
}

TEST(Accumulation, ReducesOnlyInTheLastMicroBatchOfAWindow) {
  // The gradient of w x is x; rank r sees 4r+1 .. 4r+4, so the mean over all is 4.5.
  run_ranks(2, [](Rank& rank) {
    test::join(rank);
    Accelerator accelerator({.gradient_accumulation_steps = 4, .progress = false});
    auto net = std::make_shared<torch::nn::LinearImpl>(torch::nn::LinearOptions(1, 1).bias(false));
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(1.0));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const double before = net->weight.item<double>();
    for (int i = 1; i <= 4; ++i) {
      auto window = accelerator.accumulate(model);
      EXPECT_EQ(accelerator.sync_gradients(), i == 4);
      accelerator.backward(model(at::full({1, 1}, rank.index() * 4.0 + i)).sum());
      if (i < 4) {
        EXPECT_NE(net->weight.grad().item<double>(), 4.5 * i / 4) << "not reduced yet";
      }
      optimizer.step();
      optimizer.zero_grad();
    }
    EXPECT_NEAR(before - net->weight.item<double>(), 4.5, 1e-6);
  });
}

TEST(Accumulation, IsLeftAloneByEvaluationsAndAbandonedLoops) {
  // Windows of two over 1..5 end at 2, 4 and 5, whatever other loops do in between.
  run_ranks(1, [](Rank& rank) {
    test::join(rank);
    Accelerator accelerator({.gradient_accumulation_steps = 2, .progress = false});
    Scalar scalar;
    data::Loader train(data::tensors(at::arange(1, 6).to(at::kFloat)), {});
    data::Loader test_set(data::tensors(at::arange(3)), {});
    data::Loader single(data::tensors(at::arange(1)), {});
    data::Loader another(data::tensors(at::arange(1)), {});
    auto [model, optimizer, loader, tests, one, other] =
        accelerator.prepare(scalar.net, scalar.sgd, train, test_set, single, another);
    auto held_before = one.begin();  // at its last batch for as long as it lives
    EXPECT_EQ((*held_before).item<std::int64_t>(), 0);
    std::optional<decltype(other.begin())> held_within;
    std::vector<bool> ends;
    const auto evaluate = [&, &tests = tests, &model = model](bool to_its_end) {
      const bool before = accelerator.sync_gradients();
      std::int64_t seen = 0;
      for (auto& id : tests) {
        const at::NoGradGuard no_grad;
        (void)model(id.to(at::kFloat));
        seen += accelerator.gather_for_metrics(id).numel();
        if (!to_its_end && seen == 3) break;  // with the last batch in hand
      }
      EXPECT_EQ(seen, 3);
      EXPECT_EQ(accelerator.sync_gradients(), before);
    };
    for (auto& x : loader) {
      evaluate(true);
      auto window = accelerator.accumulate(model);
      evaluate(false);
      accelerator.backward(model(x));
      evaluate(true);
      ends.push_back(accelerator.sync_gradients());
      optimizer.step();
      optimizer.zero_grad();
      if (!held_within) held_within.emplace(other.begin());
    }
    EXPECT_EQ(ends, (std::vector<bool>{false, true, false, true, true}));
    EXPECT_EQ(scalar.net->w.item<double>(), -10.0);
    EXPECT_EQ(accelerator.updates(), 3);
  });
}

TEST(Accumulation, GoesOnAfterALoopThatWasLeft) {
  // A loop left within a window leaves its micro-batch in it; the next loop completes the window.
  run_ranks(1, [](Rank& rank) {
    test::join(rank);
    Accelerator accelerator({.gradient_accumulation_steps = 2, .progress = false});
    Scalar scalar;
    data::Loader first(data::tensors(at::arange(1, 6).to(at::kFloat)), {});
    data::Loader second(data::tensors(at::full({2}, 7.0F)), {});
    auto [model, optimizer, a, b] = accelerator.prepare(scalar.net, scalar.sgd, first, second);
    const auto train_on = [&, &model = model, &optimizer = optimizer](const at::Tensor& x) {
      auto window = accelerator.accumulate(model);
      accelerator.backward(model(x));
      optimizer.step();
      optimizer.zero_grad();
    };
    for (auto& x : a) {
      train_on(x);
      break;
    }
    EXPECT_EQ(scalar.net->w.item<double>(), 0.0);
    for (auto& x : b) train_on(x);  // (1 + 7) / 2, then 7 alone
    EXPECT_EQ(scalar.net->w.item<double>(), -11.0);
    EXPECT_EQ(accelerator.updates(), 2);
  });
}

TEST(Accumulation, TakesSeveralLoadersInOneLoop) {
  // A window for the batches of two loaders in turn; the data ends with the loader that is at its last.
  run_ranks(1, [](Rank& rank) {
    test::join(rank);
    Accelerator accelerator({.gradient_accumulation_steps = 4, .progress = false});
    Scalar scalar;
    data::Loader first(data::tensors(at::arange(1, 4).to(at::kFloat)), {});
    data::Loader second(data::tensors(at::arange(10, 13).to(at::kFloat)), {});
    auto [model, optimizer, a, b] = accelerator.prepare(scalar.net, scalar.sgd, first, second);
    std::vector<bool> ends;
    const auto train_on = [&, &model = model, &optimizer = optimizer](const at::Tensor& x) {
      auto window = accelerator.accumulate(model);
      accelerator.backward(model(x));
      ends.push_back(accelerator.sync_gradients());
      optimizer.step();
      optimizer.zero_grad();
    };
    auto other = b.begin();
    for (auto& x : a) {
      train_on(x);
      train_on(*other);
      ++other;
    }
    // (1 + 10 + 2 + 11) / 4, then 3 alone, as its loader ends, then 12 alone.
    EXPECT_EQ(ends, (std::vector<bool>{false, false, false, true, true, true}));
    EXPECT_EQ(scalar.net->w.item<double>(), -21.0);
  });
}

TEST(Accumulation, ReducesWithinAWindowWhenTriggered) {
  run_ranks(2, [](Rank& rank) {
    test::join(rank);
    Accelerator accelerator({.gradient_accumulation_steps = 2, .progress = false});
    Scalar scalar;
    auto [model, optimizer] = accelerator.prepare(scalar.net, scalar.sgd);
    const at::Tensor x = at::full({1}, 2.0 + 4 * rank.index());
    auto window = accelerator.accumulate(model);
    accelerator.trigger_sync_in_backward();
    accelerator.backward(model(x));
    EXPECT_EQ(scalar.net->w.grad().item<double>(), 2.0) << "half of the mean of 2 and 6";
    accelerator.backward(model(x));
    EXPECT_EQ(scalar.net->w.grad().item<double>(), 2.0 + 1 + 2 * rank.index()) << "only that one";
  });
}

TEST(Accumulation, CoversSeveralModelsAndOptimizers) {
  for (const int processes : {1, 2})
    run_ranks(processes, [&](Rank& rank) {
      test::join(rank);
      Accelerator accelerator({.gradient_accumulation_steps = processes == 1 ? 4 : 2, .progress = false});
      Scalar left;
      Scalar right;
      auto [a, b, left_sgd, right_sgd] = accelerator.prepare(left.net, right.net, left.sgd, right.sgd);
      for (int i = 1; i <= (processes == 1 ? 4 : 2); ++i) {
        auto window = accelerator.accumulate(a, b);
        const auto x = at::full({1}, 2.0 * rank.index() + i);
        accelerator.backward(a(x));
        accelerator.backward(b(x) * 10);
        EXPECT_EQ(left.net->w.item<double>(), 0.0) << "nothing moves within a window";
        left_sgd.step();
        right_sgd.step();
        left_sgd.zero_grad();
        right_sgd.zero_grad();
      }
      EXPECT_EQ(left.net->w.item<double>(), -2.5);
      EXPECT_EQ(right.net->w.item<double>(), -25.0);
    });
}

}  // namespace
}  // namespace hasten

#include <csignal>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/nn/modules/dropout.h>
#include <torch/optim/adam.h>

#include <hasten/base/files.h>
#include <hasten/checkpoint/folder.h>
#include <hasten/checkpoint/tensors.h>

#include "support/errors.h"
#include "support/temporary_folder.h"
#include "train/support.h"

namespace hasten {
namespace {

using test::message_of;
using test::Mlp;
using test::Rank;
using test::run_ranks;
using test::TemporaryFolder;
using testing::HasSubstr;

/// What ends a run before its two epochs are over.
struct Stop {
  std::int64_t after_updates = -1;  ///< -1: nothing
  int signal = 0;                   ///< SIGTERM: told to stop; SIGKILL: right after saving
};

/// Two epochs of a network with dropout on shuffled data, resumed if there is something to resume. Returns
/// the final weights' bytes.
std::string train(Rank& rank, const std::filesystem::path& folder, const Stop& stop,
                  std::int64_t accumulation) {
  test::join(rank);
  Accelerator accelerator({.gradient_accumulation_steps = accumulation,
                           .project = {.dir = folder, .checkpoint_every = 5, .total_limit = 2},
                           .progress = false});
  at::manual_seed(3 + static_cast<std::uint64_t>(rank.index()));
  Mlp net(8, 16, 3);
  torch::nn::Dropout dropout(0.5);
  torch::optim::Adam adam(net->parameters(), torch::optim::AdamOptions(0.01));
  data::Loader samples(data::tensors(test::wave({104, 8}, 1.0, 0.5).to(at::kFloat), at::arange(104) % 3),
                       {.batch_size = 4, .shuffle = true, .seed = 9, .workers = 1});
  optim::CosineWithWarmup cosine(adam, {.warmup_steps = 4, .total_steps = 60});
  auto [model, optimizer, loader, scheduler] = accelerator.prepare(net, adam, samples, cosine);
  accelerator.load_state_if_any();
  for (auto epoch : accelerator.epochs(2)) {
    static_cast<void>(epoch);
    for (auto& [x, y] : loader) {
      auto window = accelerator.accumulate(model);
      accelerator.backward(torch::nn::functional::cross_entropy(model(dropout(x)), y));
      optimizer.step();
      scheduler.step();
      optimizer.zero_grad();
      if (accelerator.updates() == stop.after_updates) ::raise(stop.signal);
    }
  }
  accelerator.end_training();
  const at::Tensor weights = test::flat(*net);
  return {static_cast<const char*>(weights.const_data_ptr()), weights.nbytes()};
}

std::vector<std::string> run(int processes, const std::filesystem::path& folder, std::int64_t accumulation) {
  return run_ranks(processes, [&](Rank& rank) { rank.report(train(rank, folder, {}, accumulation)); });
}

/// The last rank gets a signal after so many updates; all are expected to end by it.
void run_until(int processes, const std::filesystem::path& folder, std::int64_t accumulation, Stop stop) {
  run_ranks(processes,
            [&](Rank& rank) {
              const bool all = stop.signal == SIGKILL;
              train(rank, folder, all || rank.index() == processes - 1 ? stop : Stop{}, accumulation);
              ADD_FAILURE() << "training went on to its end";
            },
            {.ends_by_signal = stop.signal});
}

TEST(Resume, EndsWithTheSameBitsAfterAKill) {
  for (const int processes : {1, 2}) {
    for (const std::int64_t accumulation : {1, 2}) {
      const TemporaryFolder whole;
      const TemporaryFolder cut;
      const auto expected = run(processes, whole.path(), accumulation);
      // Killed in the second epoch, some updates after the last checkpoint, which are then done again.
      const std::int64_t per_epoch = 26 / processes / accumulation;
      run_until(processes, cut.path(), accumulation, {.after_updates = per_epoch + 4, .signal = SIGKILL});
      const auto resumed = run(processes, cut.path(), accumulation);
      EXPECT_EQ(resumed, expected) << processes << " processes, windows of " << accumulation;
      EXPECT_FALSE(expected.at(0).empty());
    }
  }
}

TEST(Resume, StartsAfreshAfterAFinishedRun) {
  const TemporaryFolder folder;
  const auto first = run(1, folder.path(), 1);
  const auto second = run(1, folder.path(), 1);
  EXPECT_EQ(first, second);
  EXPECT_EQ(checkpoint::numbers(folder / "checkpoints").size(), 2U) << "total_limit is 2";
}

TEST(Resume, IsAnOptionOfTheProject) {
  const TemporaryFolder folder;
  run_ranks(1, [&](Rank& rank) {
    test::join(rank);
    for (int life = 0; life < 2; ++life) {
      Accelerator accelerator({.project = {.dir = folder.path(), .resume = true}, .progress = false});
      Mlp net(8, 16, 3);
      torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
      data::Loader batches(data::tensors(at::ones({12, 8})), {.batch_size = 4});
      auto [model, optimizer, loader] = accelerator.prepare(net, sgd, batches);
      std::vector<std::int64_t> epochs;
      for (auto epoch : accelerator.epochs(3)) {
        epochs.push_back(epoch);
        for (auto& x : loader) {
          accelerator.backward(model(x).square().mean());
          optimizer.step();
          optimizer.zero_grad();
        }
        // The first life ends with this checkpoint, before the end of its second epoch.
        if (life == 0 && epoch == 1) {
          accelerator.save_state();
          break;
        }
      }
      EXPECT_EQ(epochs, life == 0 ? (std::vector<std::int64_t>{0, 1}) : (std::vector<std::int64_t>{1, 2}));
      EXPECT_EQ(accelerator.updates(), life == 0 ? 6 : 9);
      if (life == 0) continue;
      // A second call goes on from here instead of going back.
      for (auto epoch : accelerator.epochs(4)) EXPECT_EQ(epoch, 3);
      accelerator.end_training();
    }
  });
}

TEST(Resume, LetsAnEvaluationSeeAllOfItsDataWhenToldToStop) {
  const TemporaryFolder folder;
  run_ranks(2, [&](Rank& rank) {
    test::join(rank);
    Accelerator accelerator({.project = {.dir = folder.path()}, .progress = false});
    Mlp net(8, 16, 3);
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
    data::Loader batches(data::tensors(at::ones({400, 8})), {.batch_size = 4});
    data::Loader tests(data::tensors(at::arange(30, at::kFloat)), {.batch_size = 4});
    auto [model, optimizer, loader, evaluation] = accelerator.prepare(net, sgd, batches, tests);
    std::int64_t updates = 0;
    for (auto epoch : accelerator.epochs(3)) {
      EXPECT_EQ(epoch, 0);
      for (auto& x : loader) {
        accelerator.backward(model(x).square().mean());
        optimizer.step();
        optimizer.zero_grad();
        if (++updates == 5 && rank.index() == 1) ::raise(SIGTERM);
      }
      double sum = 0;
      for (auto& x : evaluation) sum += accelerator.gather_for_metrics(x).sum().item<double>();
      EXPECT_EQ(sum, 29 * 30 / 2);
    }
    EXPECT_TRUE(accelerator.interrupted());
    EXPECT_LT(updates, 50);
  });
}

TEST(Resume, SavesAtTheNextUpdateWhenToldToStop) {
  for (const int processes : {1, 2}) {
    const TemporaryFolder whole;
    const TemporaryFolder cut;
    const auto expected = run(processes, whole.path(), 1);
    run_until(processes, cut.path(), 1, {.after_updates = 7, .signal = SIGTERM});
    const auto saved = checkpoint::newest(cut / "checkpoints");
    ASSERT_TRUE(saved.has_value());
    // The ranks agree on the update at which they stop, soon after the signal.
    EXPECT_THAT(files::read(saved->path("state.json")),
                testing::ContainsRegex("\"updates\": ([789]|1[0-9]|2[0-5])"));
    EXPECT_EQ(run(processes, cut.path(), 1), expected);
  }
}

TEST(Checkpoint, NumbersGoOnAfterALoad) {
  const TemporaryFolder folder;
  for (int life = 0; life < 2; ++life) {
    run_ranks(2, [&](Rank& rank) {
      test::join(rank);
      Accelerator accelerator({.project = {.dir = folder.path()}, .progress = false});
      Mlp net(8, 16, 3);
      auto model = accelerator.prepare(net);
      if (life == 1) accelerator.load_state();
      const int saves = life == 0 ? 3 : 1;
      for (int i = 0; i < saves; ++i) {
        const int number = life == 0 ? i : 3;
        EXPECT_EQ(accelerator.save_state().filename(), "checkpoint_" + std::to_string(number));
      }
    });
  }
  EXPECT_EQ(checkpoint::numbers(folder / "checkpoints"), (std::vector<std::int64_t>{0, 1, 2, 3}));
}

TEST(Checkpoint, HoldsTheModelUnderItsBareNames) {
  const TemporaryFolder folder;
  run_ranks(2, [&](Rank& rank) {
    test::join(rank);
    Accelerator accelerator({.progress = false});
    Mlp net(8, 16, 3);
    auto model = accelerator.prepare(net);
    accelerator.save_model(model, folder / "model");
    accelerator.wait_for_everyone();
    std::vector<std::string> names;
    for (const auto& [name, tensor] : checkpoint::read_tensors(folder / "model" / "model.safetensors")) {
      names.push_back(name);
      EXPECT_TRUE(tensor.equal(net->named_parameters()[name]));
    }
    EXPECT_THAT(names, testing::UnorderedElementsAre("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"));
  });
}

TEST(Checkpoint, OfAnotherModelChangesNothing) {
  const TemporaryFolder folder;
  run_ranks(1, [&](Rank& rank) {
    test::join(rank);
    {
      Accelerator accelerator({.progress = false});
      Mlp net(8, 16, 3);
      auto model = accelerator.prepare(net);
      accelerator.save_state(folder / "saved");
    }
    Accelerator accelerator({.progress = false});
    Mlp wider(8, 17, 3);
    auto model = accelerator.prepare(wider);
    const at::Tensor before = test::flat(*wider).clone();
    try {
      accelerator.load_state(folder / "saved");
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kMismatch);
      EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("fc1."), HasSubstr("16"), HasSubstr("17")));
    }
    EXPECT_TRUE(test::flat(*wider).equal(before));
  });
}

TEST(Checkpoint, HoldsObjectsOfTheProgram) {
  struct Progress {
    std::int64_t best_epoch = 0;
    std::vector<double> losses;
    std::map<std::string, at::Tensor> moments;
  };
  const TemporaryFolder folder;
  run_ranks(2, [&](Rank& rank) {
    test::join(rank);
    std::vector<std::string> calls;
    {
      Accelerator accelerator({.progress = false});
      Progress progress{3, {0.5, 0.25}, {{"a", at::ones({2})}}};
      accelerator.register_for_checkpointing(progress);
      accelerator.register_save_state_pre_hook(
          [&](const std::filesystem::path& path) { calls.push_back("save " + path.filename().string()); });
      accelerator.save_state(folder / "saved");
    }
    Accelerator accelerator({.progress = false});
    Progress progress;
    EXPECT_THAT(message_of([&] { accelerator.load_state(folder / "saved"); }, ErrorCode::kMismatch),
                HasSubstr("holds 1 registered objects, but 0"));
    accelerator.register_for_checkpointing(progress);
    accelerator.register_load_state_pre_hook(
        [&](const std::filesystem::path& path) { calls.push_back("load " + path.filename().string()); });
    accelerator.load_state(folder / "saved");
    EXPECT_EQ(progress.best_epoch, 3);
    EXPECT_EQ(progress.losses, (std::vector<double>{0.5, 0.25}));
    EXPECT_TRUE(progress.moments.at("a").equal(at::ones({2})));
    EXPECT_EQ(calls, (std::vector<std::string>{"save saved", "load saved"}));
  });
}

TEST(Launch, RunsAFunctionInSeveralProcesses) {
  const TemporaryFolder folder;
  launch(
      {.num_processes = 2},
      [](const std::filesystem::path& where, double factor) {
        Accelerator accelerator({.progress = false});
        const at::Tensor sum = accelerator.reduce(at::full({}, factor * (1.0 + accelerator.process_index())));
        std::ofstream(where / std::to_string(accelerator.process_index())) << sum.item<double>();
      },
      folder.path(), 10.0);
  EXPECT_EQ(files::read(folder / "0"), "30");
  EXPECT_EQ(files::read(folder / "1"), "30");
  try {
    launch({.num_processes = 2}, [] {
      Accelerator accelerator({.progress = false});
      if (accelerator.process_index() == 1) throw std::runtime_error("boom");
      accelerator.wait_for_everyone();
    });
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("1"), HasSubstr("boom")));
  }
}

}  // namespace
}  // namespace hasten

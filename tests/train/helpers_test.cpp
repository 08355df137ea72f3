#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include <ATen/ops/rand.h>

#include <hasten/base/log.h>
#include <hasten/precision/fp32.h>

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
using testing::AllOf;
using testing::HasSubstr;

// ---- metrics ----

/// What a program sees of a loader's epoch through `gather_for_metrics` and its relatives.
struct Seen {
  std::vector<std::int64_t> ids;
  std::vector<std::string> names;
  double mean = 0;
};

Seen evaluate(Accelerator& accelerator, std::int64_t samples, const data::LoaderOptions& options,
              std::int64_t stop_after = -1) {
  data::Loader ids(data::tensors(at::arange(samples)), options);
  auto loader = accelerator.prepare(ids);
  data::Loader others(data::tensors(at::arange(3)), {.batch_size = 2});
  auto nested = accelerator.prepare(others);
  Seen seen;
  metrics::Mean mean;
  for (auto& batch : loader) {
    std::int64_t inner = 0;
    for (auto& other : nested) inner += accelerator.gather_for_metrics(other).numel();
    EXPECT_EQ(inner, 3) << "an evaluation within an evaluation";
    const at::Tensor all = accelerator.gather_for_metrics(batch);
    for (std::int64_t i = 0; i < all.numel(); ++i) seen.ids.push_back(all[i].template item<std::int64_t>());
    std::vector<std::string> mine;
    for (std::int64_t i = 0; i < batch.numel(); ++i)
      mine.push_back(std::to_string(batch[i].template item<std::int64_t>()));
    for (auto& name : accelerator.gather_object_for_metrics(mine)) seen.names.push_back(name);
    accelerator.update(mean, batch);
    if (loader->position() == stop_after) break;
  }
  seen.mean = accelerator.compute(mean);
  return seen;
}

TEST(GatherForMetrics, GivesEachSampleOnceInOrderForEveryCombination) {
  for (const int processes : {1, 2, 3})
    run_ranks(processes, [&](Rank& rank) {
      test::join(rank);
      Accelerator accelerator({.progress = false});
      std::mt19937 random(11);  // the same draws on all ranks
      for (int round = 0; round < 60; ++round) {
        const bool split = random() % 2 == 0;
        const std::int64_t each = 1 + static_cast<std::int64_t>(random() % 5);
        const data::LoaderOptions options{.batch_size = split ? each * processes : each,
                                          .drop_last = random() % 3 == 0,
                                          .split_batches = split,
                                          .even_batches = true};
        const auto samples = static_cast<std::int64_t>(random() % 40);
        const std::int64_t stop = random() % 4 == 0 ? 1 : -1;
        SCOPED_TRACE(concat(samples, " samples, batch ", options.batch_size, ", ", processes, " processes",
                            split ? ", split" : "", options.drop_last ? ", drop_last" : "",
                            stop > 0 ? ", left after a batch" : ""));
        const std::int64_t step = each * processes;
        std::int64_t expected = options.drop_last ? samples / step * step : samples;
        if (stop > 0) expected = std::min(expected, step);
        const Seen seen = evaluate(accelerator, samples, options, stop);
        ASSERT_EQ(static_cast<std::int64_t>(seen.ids.size()), expected);
        ASSERT_EQ(static_cast<std::int64_t>(seen.names.size()), expected);
        for (std::int64_t i = 0; i < expected; ++i) {
          EXPECT_EQ(seen.ids[static_cast<std::size_t>(i)], i);
          EXPECT_EQ(seen.names[static_cast<std::size_t>(i)], std::to_string(i));
        }
        if (expected > 0) {
          EXPECT_DOUBLE_EQ(seen.mean, static_cast<double>(expected - 1) / 2);
        } else {
          EXPECT_TRUE(std::isnan(seen.mean));
        }
      }
    });
}

TEST(Metrics, AreReducedOnceOverRanks) {
  // 9 samples with value = id in batches of 5: the mean of ranks' means would be 3.6.
  run_ranks(2, [](Rank& rank) {
    test::join(rank);
    Accelerator accelerator({.progress = false});
    EXPECT_DOUBLE_EQ(evaluate(accelerator, 9, {.batch_size = 5}).mean, 4.0);
    metrics::Accuracy accuracy;
    if (rank.index() == 0) accuracy.update(at::ones({3}, at::kLong), at::ones({3}, at::kLong));
    EXPECT_DOUBLE_EQ(accelerator.compute(accuracy), 1.0) << "also where a rank counted nothing";
  });
}

TEST(WeightedMean, CountsRanksByTheirSamples) {
  run_ranks(2, [](Rank& rank) {
    test::join(rank);
    Accelerator accelerator({.progress = false});
    const bool first = rank.index() == 0;
    // A loss of 4 over 1 token, and of 0 over 3.
    const at::Tensor mean = accelerator.weighted_mean(at::full({}, first ? 4.0F : 0.0F), first ? 1 : 3);
    EXPECT_EQ(mean.item<float>(), 1.0F);
    EXPECT_EQ(mean.dim(), 0);
    const at::Tensor without =
        accelerator.weighted_mean(at::full({2}, first ? 5.0 : std::nan(""), at::kBFloat16), first ? 2 : 0);
    EXPECT_TRUE(without.equal(at::full({2}, 5.0, at::kBFloat16)));
    EXPECT_TRUE(std::isnan(accelerator.weighted_mean(at::ones({}), 0).item<double>()));
    EXPECT_EQ(test::error_of([&] { (void)accelerator.weighted_mean(at::ones({1}), -1); }).first,
              ErrorCode::kInvalidArgument);
  });
}

// ---- objects ----

TEST(Accelerator, SharesObjectsBetweenProcesses) {
  run_ranks(3, [](Rank& rank) {
    test::join(rank);
    Accelerator accelerator({.progress = false});
    const auto all =
        accelerator.gather_object(std::pair(rank.index(), std::string(1, 'a' + char(rank.index()))));
    EXPECT_EQ(all, (std::vector<std::pair<int, std::string>>{{0, "a"}, {1, "b"}, {2, "c"}}));
    std::vector<std::string> list{"mine", std::to_string(rank.index())};
    accelerator.broadcast_object_list(list, 2);
    EXPECT_EQ(list, (std::vector<std::string>{"mine", "2"}));
    EXPECT_EQ(accelerator.broadcast(at::full({2}, 1.0 * rank.index()), 1)[0].item<double>(), 1.0);
    const std::vector<std::string> prompts{"p", "q", "r", "s"};
    EXPECT_EQ(accelerator.split_between_processes(prompts),
              (std::vector<std::vector<std::string>>{
                  {"p", "q"}, {"r"}, {"s"}})[static_cast<std::size_t>(rank.index())]);
    EXPECT_EQ(accelerator.split_between_processes(prompts, true).size(), 2U);
  });
}

// ---- randomness, triggers, loaders, memory ----

TEST(SetSeed, MakesRanksAlikeOrDifferent) {
  const auto reports = run_ranks(2, [](Rank& rank) {
    test::join(rank);
    Accelerator accelerator({.progress = false});
    for (const bool device_specific : {false, true}) {
      accelerator.set_seed(3, device_specific);
      const at::Tensor all = accelerator.gather(at::rand({1, 4}));
      EXPECT_EQ(all[0].equal(all[1]), !device_specific);
    }
    set_seed(4);
    const at::Tensor one = at::rand({3});
    accelerator.set_seed(4 - rank.index(), /*device_specific=*/true);
    EXPECT_TRUE(at::rand({3}).equal(one)) << "the seed plus the rank";
  });
}

TEST(Trigger, IsSeenByAllRanksOnce) {
  run_ranks(2, [](Rank& rank) {
    test::join(rank);
    Accelerator accelerator({.progress = false});
    EXPECT_FALSE(accelerator.check_trigger());
    if (rank.index() == 1) accelerator.set_trigger();
    EXPECT_TRUE(accelerator.check_trigger());
    EXPECT_FALSE(accelerator.check_trigger());
  });
}

TEST(SkipFirstBatches, HoldsForTheNextLoop) {
  run_ranks(1, [](Rank& rank) {
    test::join(rank);
    Accelerator accelerator({.progress = false});
    data::Loader ids(data::tensors(at::arange(10)), {.batch_size = 4, .drop_last = true});
    auto loader = accelerator.prepare(ids);
    std::vector<std::int64_t> firsts;
    for (auto& batch : accelerator.skip_first_batches(loader, 1))
      firsts.push_back(batch[0].item<std::int64_t>());
    EXPECT_EQ(firsts, std::vector<std::int64_t>{4}) << "drop_last holds as before";
    firsts.clear();
    for (auto& batch : loader) firsts.push_back(batch[0].item<std::int64_t>());
    EXPECT_EQ(firsts, (std::vector<std::int64_t>{0, 4}));
    EXPECT_THAT(
        message_of([&] { (void)accelerator.skip_first_batches(loader, 3); }, ErrorCode::kInvalidArgument),
        HasSubstr("2 batches in the loader, of which 3"));
  });
}

TEST(FreeMemory, EmptiesHandlesAndGivesMemoryBack) {
  run_ranks(1, [](Rank& rank) {
    test::join(rank);
    Accelerator accelerator({.progress = false});
    auto net = std::make_shared<torch::nn::LinearImpl>(2000, 2000);
    const std::weak_ptr<torch::nn::LinearImpl> alive = net;
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
    {
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      accelerator.free_memory(model, optimizer);
      EXPECT_EQ(model.module(), nullptr);
    }
    net.reset();
    sgd.param_groups().clear();
    EXPECT_TRUE(alive.expired()) << "nothing of the library's holds the model";
// The sanitizers' allocators keep what is freed, to find its later use.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    const auto used = [] { return device::backend(at::kCPU).memory(0).used; };
    {
      const at::Tensor large = at::ones({64 << 20}, at::kByte);
    }
    const std::int64_t before = used();
    accelerator.free_memory();
    EXPECT_LT(used(), before - (32 << 20)) << "the block of 64 MiB is not kept";
#endif
  });
}

TEST(FindExecutableBatchSize, IsAgreedOnByRanks) {
  run_ranks(2, [](Rank& rank) {
    test::join(rank);
    Accelerator accelerator({.progress = false});
    const std::int64_t size = accelerator.find_executable_batch_size(10, [&](std::int64_t batch) {
      if (rank.index() == 1 && batch > 8) throw std::bad_alloc();
      return batch;
    });
    EXPECT_EQ(size, 8);
  });
}

TEST(ConvertOutputsToFp32, ReachesNestedOutputs) {
  auto f = precision::convert_outputs_to_fp32([](const at::Tensor& x) {
    return std::map<std::string, std::vector<at::Tensor>>{{"a", {x.to(at::kBFloat16), x.to(at::kLong)}}};
  });
  const auto out = f(at::ones({2}));
  EXPECT_EQ(out.at("a")[0].scalar_type(), at::kFloat);
  EXPECT_EQ(out.at("a")[1].scalar_type(), at::kLong);
}

// ---- profile ----

/// The names of the events of a trace.
std::set<std::string> events_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::set<std::string> names;
  const auto trace = nlohmann::json::parse(file);
  for (const auto& event : trace.at("traceEvents"))
    if (event.contains("name")) names.insert(event.at("name").get<std::string>());
  return names;
}

TEST(Profile, WritesATraceOfEachRank) {
  const TemporaryFolder folder;
  run_ranks(2, [&](Rank& rank) {
    test::join(rank);
    Accelerator accelerator({.progress = false});
    Mlp net(4, 4, 2);
    auto model = accelerator.prepare(net);
    {
      auto profile = accelerator.profile({.output_trace_dir = folder / "traces", .record_shapes = true});
      accelerator.backward(model(at::ones({3, 4})).sum());
      EXPECT_THAT(message_of([&] { (void)accelerator.profile({.output_trace_dir = folder / "traces"}); },
                             ErrorCode::kFailedPrecondition),
                  HasSubstr("another profile records"));
    }
    const auto names = events_of(folder / "traces" / concat("trace_rank_", rank.index(), ".json"));
    EXPECT_TRUE(names.contains("aten::addmm"));
    EXPECT_TRUE(names.contains("AddmmBackward0") ||
                names.contains("autograd::engine::evaluate_function: AddmmBackward0"));
  });
}

TEST(Profile, FollowsItsSchedule) {
  const TemporaryFolder folder;
  run_ranks(1, [&](Rank& rank) {
    test::join(rank);
    Accelerator accelerator({.progress = false});
    {
      auto profile = accelerator.profile(
          {.output_trace_dir = folder.path(), .skip_first = 1, .wait = 1, .active = 2, .repeat = 2});
      // Steps 2, 3 and 5, 6 are recorded: each calls an operator of its own.
      const std::vector<std::function<void(const at::Tensor&)>> steps{
          [](const at::Tensor& x) { (void)x.sin(); },  [](const at::Tensor& x) { (void)x.cos(); },
          [](const at::Tensor& x) { (void)x.tan(); },  [](const at::Tensor& x) { (void)x.exp(); },
          [](const at::Tensor& x) { (void)x.log(); },  [](const at::Tensor& x) { (void)x.abs(); },
          [](const at::Tensor& x) { (void)x.sqrt(); }, [](const at::Tensor& x) { (void)x.floor(); }};
      for (const auto& step : steps) {
        step(at::ones({2}));
        profile.step();
      }
    }
    const auto first = events_of(folder / "trace_rank_0_0.json");
    const auto second = events_of(folder / "trace_rank_0_1.json");
    for (const char* name : {"aten::tan", "aten::exp"}) EXPECT_TRUE(first.contains(name)) << name;
    for (const char* name : {"aten::abs", "aten::sqrt"}) EXPECT_TRUE(second.contains(name)) << name;
    for (const char* name : {"aten::sin", "aten::cos", "aten::log", "aten::floor"})
      EXPECT_FALSE(first.contains(name) || second.contains(name)) << name;
    EXPECT_FALSE(std::filesystem::exists(folder / "trace_rank_0_2.json"));
    EXPECT_EQ(test::error_of([&] { (void)accelerator.profile({.active = -1}); }).first,
              ErrorCode::kInvalidArgument);
  });
}

// ---- logging ----

TEST(Logger, WritesOnTheProcessesThatItIsTold) {
  const auto reports = run_ranks(3, [](Rank& rank) {
    test::join(rank);
    Accelerator accelerator({.progress = false});
    log::set_sink([&](log::Level, std::string_view text) { rank.report(std::string(text) + ";"); });
    const Logger logger(accelerator);
    logger.info("main");
    logger.info("all", {.main_process_only = false});
    logger.info("turn", {.in_order = true});
    for (int i = 0; i < 3; ++i) logger.warning_once("once", {.main_process_only = false});
    log::set_sink(nullptr);
  });
  EXPECT_EQ(reports[0], "main;[rank 0] all;[rank 0] turn;[rank 0] once;");
  EXPECT_EQ(reports[2], "[rank 2] all;[rank 2] turn;[rank 2] once;");
}

TEST(Once, IsTrueOnceAPlace) {
  int first = 0;
  int second = 0;
  for (int i = 0; i < 5; ++i) {
    if (once()) ++first;
    if (once()) ++second;
  }
  EXPECT_EQ(first, 1);
  EXPECT_EQ(second, 1);
}

}  // namespace
}  // namespace hasten

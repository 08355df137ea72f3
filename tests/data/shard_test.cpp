#include <fstream>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <set>

#include <hasten/base/error.h>
#include <hasten/data/shard.h>

namespace hasten {
namespace {

using Batches = std::vector<std::vector<std::int64_t>>;

Batches batches_of(const data::ShardOptions& options) {
  const data::Shard shard(options);
  Batches batches;
  for (std::int64_t batch = 0; batch < shard.batches(); ++batch) batches.push_back(shard.positions(batch));
  return batches;
}

TEST(Shard, EqualsAccelerateInEveryCase) {
  std::ifstream file(HASTEN_GOLDEN_DIR "/data/batch_sampler_shard.json");
  const auto cases = nlohmann::json::parse(file).at("cases");
  ASSERT_GT(cases.size(), 900U);
  for (const auto& expected : cases) {
    data::ShardOptions options{.size = expected["size"],
                               .batch_size = expected["batch_size"],
                               .num_processes = expected["processes"],
                               .drop_last = expected["drop_last"],
                               .split_batches = expected["split_batches"],
                               .even_batches = expected["even_batches"]};
    for (; options.rank < options.num_processes; ++options.rank) {
      const auto want = expected["shards"][static_cast<std::size_t>(options.rank)].get<Batches>();
      ASSERT_EQ(batches_of(options), want) << expected.dump() << " rank " << options.rank;
    }
  }
}

// Batches of all ranks, gathered step by step and cut to the samples that are real, as a metric sees them.
std::vector<std::int64_t> gathered(data::ShardOptions options) {
  std::vector<data::Shard> shards;
  for (; options.rank < options.num_processes; ++options.rank) shards.emplace_back(options);
  std::vector<std::int64_t> all;
  for (std::int64_t step = 0; step < shards[0].batches(); ++step) {
    std::vector<std::int64_t> of_step;
    for (const data::Shard& shard : shards) {
      if (step >= shard.batches()) continue;
      const auto positions = shard.positions(step);
      of_step.insert(of_step.end(), positions.begin(), positions.end());
    }
    if (step + 1 == shards[0].batches()) {
      EXPECT_LE(static_cast<std::size_t>(shards[0].remainder()), of_step.size());
      of_step.resize(static_cast<std::size_t>(shards[0].remainder()));
    }
    all.insert(all.end(), of_step.begin(), of_step.end());
  }
  EXPECT_EQ(static_cast<std::int64_t>(all.size()), shards[0].samples());
  return all;
}

TEST(Shard, RemainderKeepsEverySampleOnceWhenGathered) {
  for (std::int64_t size = 0; size <= 40; ++size)
    for (std::int64_t batch = 1; batch <= 6; ++batch)
      for (std::int64_t processes = 1; processes <= 4; ++processes)
        for (const bool even : {true, false})
          for (const bool drop : {true, false}) {
            const data::ShardOptions options{.size = size,
                                             .batch_size = batch,
                                             .num_processes = processes,
                                             .drop_last = drop,
                                             .even_batches = even};
            const std::int64_t step = batch * processes;
            const auto kept = gathered(options);
            ASSERT_EQ(static_cast<std::int64_t>(kept.size()), drop ? size / step * step : size)
                << size << ' ' << batch << ' ' << processes << ' ' << even << ' ' << drop;
            for (std::size_t i = 0; i < kept.size(); ++i) ASSERT_EQ(kept[i], static_cast<std::int64_t>(i));
          }
}

TEST(Shard, KeepsAllSamplesOfAnEvenDivisionAndAllOfADroppedEnd) {
  EXPECT_EQ(gathered({.size = 16, .batch_size = 4, .num_processes = 2}).size(), 16U);
  EXPECT_EQ(gathered({.size = 11, .batch_size = 5, .num_processes = 2, .drop_last = true}).size(), 10U);
  EXPECT_EQ(gathered({.size = 9, .batch_size = 5, .drop_last = true}).size(), 5U);
  EXPECT_TRUE(gathered({.size = 9, .batch_size = 5, .num_processes = 2, .drop_last = true}).empty());
}

TEST(Shard, CountsExactlyTheBatchesThatItGives) {
  const data::ShardOptions uneven{
      .size = 3, .batch_size = 2, .num_processes = 2, .split_batches = true, .even_batches = false};
  data::ShardOptions second = uneven;
  second.rank = 1;
  EXPECT_EQ(batches_of(uneven), (Batches{{0}, {2}}));
  EXPECT_EQ(batches_of(second), (Batches{{1}}));
  const data::Shard split({.size = 100, .batch_size = 10, .num_processes = 2, .split_batches = true});
  EXPECT_EQ(split.batches(), 10);
  EXPECT_EQ(split.batch_size(), 5);
  EXPECT_EQ(split.global_batch_size(), 10);
}

TEST(Shard, GoesOnFromAnySampleOfTheOrder) {
  for (std::int64_t first = 0; first <= 23; ++first)
    for (std::int64_t processes = 1; processes <= 4; ++processes) {
      std::multiset<std::int64_t> seen;
      for (std::int64_t rank = 0; rank < processes; ++rank)
        for (const auto& batch : batches_of({.size = 23,
                                             .batch_size = 3,
                                             .num_processes = processes,
                                             .rank = rank,
                                             .even_batches = false,
                                             .first = first}))
          seen.insert(batch.begin(), batch.end());
      std::multiset<std::int64_t> rest;
      for (std::int64_t i = first; i < 23; ++i) rest.insert(i);
      ASSERT_EQ(seen, rest) << first << ' ' << processes;
    }
}

TEST(Shard, FindsABatchOfAHugeOrderAtOnce) {
  const data::Shard shard({.size = 3'000'000'000'000, .batch_size = 7, .num_processes = 8, .rank = 7});
  EXPECT_EQ(shard.positions(shard.batches() - 2).front(), (shard.batches() - 2) * 56 + 49);
}

TEST(Shard, NamesTheNearestBatchSizesThatCanBeSplit) {
  try {
    data::Shard({.size = 10, .batch_size = 8, .num_processes = 3, .split_batches = true});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    const std::string text = error.what();
    EXPECT_NE(text.find("batch of 8 samples"), std::string::npos) << text;
    EXPECT_NE(text.find("3 processes"), std::string::npos) << text;
    EXPECT_NE(text.find("6 or 9"), std::string::npos) << text;
  }
  // Nothing smaller can be split among more processes than samples.
  try {
    data::Shard({.size = 10, .batch_size = 2, .num_processes = 3, .split_batches = true});
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("batch_size to 3,"), std::string::npos) << error.what();
  }
}

TEST(Shard, RefusesARankOrASizeThatDoesNotExist) {
  EXPECT_THROW(data::Shard({.size = 1, .num_processes = 2, .rank = 2}), Error);
  EXPECT_THROW(data::Shard({.size = 1, .num_processes = 0}), Error);
  EXPECT_THROW(data::Shard({.size = 1, .batch_size = 0}), Error);
  EXPECT_THROW(data::Shard({.size = -1}), Error);
  EXPECT_THROW(data::Shard({.size = 3, .first = 4}), Error);
}

}  // namespace
}  // namespace hasten

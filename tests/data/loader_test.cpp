#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <gtest/gtest.h>
#include <mutex>
#include <pthread.h>
#include <set>
#include <string>
#include <thread>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <hasten/base/error.h>
#include <hasten/data/loader.h>
#include <hasten/data/tensor_dataset.h>

#include "support/errors.h"

namespace hasten {
namespace {

using test::message_of;

using Ids = std::vector<std::int64_t>;

// A dataset whose samples are their numbers.
struct Numbers {
  std::int64_t count;
  std::int64_t size() const { return count; }
  std::int64_t get(std::int64_t index) const { return index; }
};

// Samples with random parts, as augmentation makes them.
struct Augmented {
  std::int64_t count;
  std::int64_t size() const { return count; }
  std::pair<std::int64_t, double> get(std::int64_t index, const data::BatchContext& context) const {
    return {index, context.random(index).uniform()};
  }
};

Ids ids(const at::Tensor& batch) {
  return {batch.const_data_ptr<std::int64_t>(), batch.const_data_ptr<std::int64_t>() + batch.numel()};
}

template <class Loader>
std::vector<Ids> pass(Loader& loader) {
  std::vector<Ids> batches;
  for (auto& batch : loader) batches.push_back(ids(batch));
  return batches;
}

Ids joined(const std::vector<Ids>& batches) {
  Ids all;
  for (const Ids& batch : batches) all.insert(all.end(), batch.begin(), batch.end());
  return all;
}

int workers_of_this_process() {
  int count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    if (name.rfind("hasten-data-", 0) == 0) ++count;
  }
  return count;
}

// Whether there are so many workers, at once or soon: the kernel lists a thread a little longer than it can
// be joined.
bool workers_become(int expected) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (workers_of_this_process() != expected) {
    if (std::chrono::steady_clock::now() > limit) return false;
    std::this_thread::yield();
  }
  return true;
}

TEST(Loader, GivesTheSamplesInOrderAndTheShortLastBatch) {
  data::Loader loader(Numbers{10}, {.batch_size = 4});
  EXPECT_EQ(loader.batches(), 3);
  EXPECT_EQ(loader.size(), 3);
  EXPECT_EQ(pass(loader), (std::vector<Ids>{{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9}}));
  data::Loader dropping(Numbers{10}, {.batch_size = 4, .drop_last = true});
  EXPECT_EQ(dropping.batches(), 2);
  EXPECT_EQ(pass(dropping), (std::vector<Ids>{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  data::Loader nothing(Numbers{0}, {.batch_size = 4});
  EXPECT_TRUE(pass(nothing).empty());
}

TEST(Loader, GivesTheSameBatchesWhateverTheNumberOfWorkers) {
  std::vector<std::pair<Ids, std::vector<double>>> expected;
  for (const int workers : {0, 1, 4}) {
    data::Loader loader(Augmented{103}, {.batch_size = 5, .shuffle = true, .seed = 3, .workers = workers});
    std::vector<std::pair<Ids, std::vector<double>>> seen;
    for (int epoch = 0; epoch < 3; ++epoch)
      for (auto& [index, value] : loader)
        seen.emplace_back(ids(index),
                          std::vector<double>(value.template const_data_ptr<double>(),
                                              value.template const_data_ptr<double>() + value.numel()));
    EXPECT_EQ(seen.size(), 3U * 21);
    if (workers == 0) expected = seen;
    EXPECT_EQ(seen, expected) << workers << " workers";
  }
}

TEST(Loader, ShufflesEachEpochAnewAndTheSameInEveryProcess) {
  std::vector<Ids> epochs;
  data::Loader first(Numbers{8}, {.batch_size = 2, .shuffle = true, .seed = 7});
  data::Loader second(Numbers{8}, {.batch_size = 2, .shuffle = true, .seed = 7});
  first.shard(0, 2);
  second.shard(1, 2);
  for (int epoch = 0; epoch < 3; ++epoch) {
    EXPECT_EQ(first.epoch(), epoch);
    const Ids mine = joined(pass(first));
    const Ids other = joined(pass(second));
    std::set<std::int64_t> all(mine.begin(), mine.end());
    all.insert(other.begin(), other.end());
    EXPECT_EQ(mine.size() + other.size(), 8U);
    EXPECT_EQ(all.size(), 8U);
    epochs.push_back(mine);
    epochs.back().insert(epochs.back().end(), other.begin(), other.end());
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
}

TEST(Loader, FindsAnEpochsOrderByItsNumber) {
  data::Loader first(Numbers{24}, {.batch_size = 8, .shuffle = true});
  data::Loader second(Numbers{24}, {.batch_size = 8, .shuffle = true});
  const auto zero = pass(second);
  first.set_epoch(1);
  const auto one = pass(first);
  EXPECT_EQ(one, pass(second));
  EXPECT_NE(one, zero);
  first.set_epoch(0);
  EXPECT_EQ(pass(first), zero);
}

TEST(Loader, FillsTheLastStepOnlyWithSeveralProcesses) {
  data::Loader loader(Numbers{10}, {.batch_size = 4});
  EXPECT_EQ(loader.remainder(), 2);
  loader.shard(1, 2);
  EXPECT_EQ(loader.batches(), 2);
  EXPECT_EQ(loader.global_batch_size(), 8);
  EXPECT_EQ(loader.remainder(), 2);
  EXPECT_EQ(pass(loader), (std::vector<Ids>{{4, 5, 6, 7}, {2, 3, 4, 5}}));
  EXPECT_NE(message_of([] {
              data::Loader split(Numbers{10}, {.batch_size = 8, .split_batches = true});
              split.shard(0, 3);
            }).find("6 or 9"),
            std::string::npos);
}

TEST(Loader, ProducesAsManyBatchesAsItSays) {
  for (std::int64_t size = 0; size < 30; ++size)
    for (std::int64_t rank = 0; rank < 3; ++rank)
      for (const bool even : {true, false})
        for (const bool drop : {true, false})
          for (const bool split : {true, false}) {
            data::Loader loader(
                Numbers{size},
                {.batch_size = 3, .drop_last = drop, .split_batches = split, .even_batches = even});
            loader.shard(rank, 3);
            ASSERT_EQ(static_cast<std::int64_t>(pass(loader).size()), loader.batches());
          }
}

TEST(Loader, KnowsItsPositionAndItsLastBatch) {
  for (const int workers : {0, 2}) {
    data::Loader loader(Numbers{10}, {.batch_size = 4, .workers = workers});
    EXPECT_EQ(loader.position(), 0);
    EXPECT_FALSE(loader.is_last_batch());
    std::int64_t count = 0;
    for ([[maybe_unused]] auto& batch : loader) {
      EXPECT_EQ(loader.position(), ++count);
      EXPECT_EQ(loader.is_last_batch(), count == 3);
      EXPECT_EQ(loader.epoch(), 0);
    }
    EXPECT_EQ(loader.position(), 0);
    EXPECT_FALSE(loader.is_last_batch());
    EXPECT_EQ(loader.epoch(), 1);
  }
}

TEST(Loader, CountsAPassThatWasLeftAsAnEpoch) {
  for (const int workers : {0, 3}) {
    data::Loader whole(Numbers{40}, {.batch_size = 4, .shuffle = true});
    data::Loader loader(Numbers{40}, {.batch_size = 4, .shuffle = true, .workers = workers});
    pass(whole);
    for ([[maybe_unused]] auto& batch : loader)
      if (loader.position() == 2) break;
    EXPECT_EQ(loader.epoch(), 1);
    EXPECT_EQ(loader.position(), 0);
    EXPECT_EQ(pass(loader), pass(whole));
  }
}

TEST(Loader, CanBeLeftAtAnyPointOrDestroyedAtOnce) {
  for (const int workers : {0, 1, 4}) {
    for (int leave = 0; leave < 12; ++leave) {
      data::Loader loader(Numbers{40}, {.batch_size = 4, .workers = workers});
      int count = 0;
      for ([[maybe_unused]] auto& batch : loader)
        if (count++ == leave) break;
      if (leave % 2 == 0) {
        EXPECT_EQ(pass(loader).size(), 10U);
      }
    }
    auto loader =
        std::make_unique<data::Loader<Numbers>>(Numbers{40}, data::LoaderOptions{.workers = workers});
    auto iterator = loader->begin();
    const auto anchor = loader->anchor();
    EXPECT_EQ(*anchor, loader.get());
    loader.reset();  // the iterator outlives it
    EXPECT_EQ(*anchor, nullptr);
    EXPECT_THROW(++iterator, Error);
  }
}

TEST(Loader, StartsItsThreadsAtTheFirstPassAndLeavesNoneBehind) {
  for (int round = 0; round < 5; ++round) {
    EXPECT_TRUE(workers_become(0));
    data::Loader loader(Numbers{40}, {.batch_size = 4, .workers = 3});
    EXPECT_EQ(workers_of_this_process(), 0);
    for ([[maybe_unused]] auto& batch : loader) {
      EXPECT_TRUE(workers_become(3));
      break;
    }
  }
  EXPECT_TRUE(workers_become(0));
}

TEST(Loader, LoopsOverTwoLoadersAtOnce) {
  data::Loader outer(Numbers{6}, {.batch_size = 2, .workers = 1});
  data::Loader inner(Numbers{4}, {.batch_size = 2, .workers = 2});
  int count = 0;
  for ([[maybe_unused]] auto& a : outer)
    for ([[maybe_unused]] auto& b : inner) ++count;
  EXPECT_EQ(count, 6);
}

TEST(Loader, RefusesASecondLoopAndChangesWithinOne) {
  data::Loader loader(Numbers{6}, {.batch_size = 2});
  auto iterator = loader.begin();
  EXPECT_NE(message_of([&] { (void)loader.begin(); }).find("batch 1 of 3 in epoch 0"), std::string::npos);
  EXPECT_THROW(loader.shard(0, 2), Error);
  EXPECT_THROW(loader.set_epoch(1), Error);
  EXPECT_THROW(loader.load_state({}), Error);
  EXPECT_EQ(ids(*++iterator), (Ids{2, 3}));
}

TEST(Loader, TakesADatasetByPointerAndByReference) {
  Numbers numbers{3};
  const auto shared = std::make_shared<const Numbers>(numbers);
  data::Loader by_reference(std::ref(numbers), {.batch_size = 3});
  data::Loader by_pointer(shared, {.batch_size = 3});
  numbers.count = 2;
  EXPECT_EQ(&by_reference.dataset(), &numbers);
  EXPECT_EQ(&by_pointer.dataset(), shared.get());
  EXPECT_EQ(pass(by_reference), pass(by_pointer));
}

// Not const, so that each worker must have one of its own.
struct Counting {
  std::int64_t calls = 0;
  bool busy = false;
  std::int64_t size() const { return 200; }
  std::int64_t get(std::int64_t index) {
    EXPECT_FALSE(std::exchange(busy, true));
    ++calls;
    busy = false;
    return index;
  }
};

TEST(Loader, GivesEachWorkerACopyOfADatasetThatReadingChanges) {
  data::Loader loader(Counting(), {.batch_size = 2, .workers = 4});
  EXPECT_EQ(joined(pass(loader)).size(), 200U);
  EXPECT_EQ(loader.dataset().calls, 0);
  data::Loader alone(Counting(), {.batch_size = 2});
  pass(alone);
  EXPECT_EQ(alone.dataset().calls, 200);
}

struct NotCopyable : Counting {
  NotCopyable() = default;
  NotCopyable(NotCopyable&&) = default;
};

TEST(Loader, RefusesSeveralWorkersForADatasetThatTheyCannotShareOrCopy) {
  EXPECT_EQ(
      pass(*std::make_unique<data::Loader<NotCopyable>>(NotCopyable(), data::LoaderOptions{.workers = 1}))
          .size(),
      200U);
  EXPECT_THROW((data::Loader<NotCopyable>(NotCopyable(), {.workers = 2})), Error);
}

struct Failing {
  std::int64_t bad;
  std::int64_t size() const { return 20; }
  std::int64_t get(std::int64_t index) const {
    if (index == bad) throw std::runtime_error("the disk is on fire");
    if (index == bad + 100) fail(ErrorCode::kCorruptData, "test", "cut");
    return index;
  }
};

struct FailingBatches : Failing {
  at::Tensor get_batch(data::Indices indices) const {
    for (const auto index : indices) (void)get(index);
    return at::zeros({static_cast<std::int64_t>(indices.size())});
  }
};

TEST(Loader, NamesTheSampleThatCouldNotBeRead) {
  for (const int workers : {0, 1, 3}) {
    data::Loader loader(Failing{9}, {.batch_size = 4, .workers = workers});
    int given = 0;
    const std::string text = message_of([&] {
      for ([[maybe_unused]] auto& batch : loader) ++given;
    });
    EXPECT_EQ(given, 2);
    EXPECT_NE(text.find("sample 9 of batch 2 in epoch 0: the disk is on fire"), std::string::npos) << text;
    EXPECT_FALSE(loader.is_running());
    EXPECT_EQ(loader.position(), 2);  // the next pass tries that batch again

    data::Loader batches(FailingBatches{{9}}, {.batch_size = 5, .workers = workers});
    const std::string of_batch = message_of([&] {
      for ([[maybe_unused]] auto& batch : batches) {
      }
    });
    EXPECT_NE(of_batch.find("samples 5, 6, 7, 8, ... (5 in all) of batch 1"), std::string::npos) << of_batch;

    data::Loader corrupt(Failing{-100 + 3}, {.batch_size = 5, .workers = workers});
    try {
      pass(corrupt);
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCorruptData);
    }
  }
}

TEST(Loader, KeepsLibTorchsStackFramesOutOfItsMessages) {
  struct Broken {
    std::int64_t size() const { return 1; }
    at::Tensor get(std::int64_t) const { return at::zeros({2}).view({3}); }
  };
  data::Loader loader(Broken(), {});
  const std::string text = message_of([&] { (void)loader.begin(); });
  EXPECT_NE(text.find("shape"), std::string::npos) << text;
  EXPECT_EQ(text.find("frame #"), std::string::npos) << text;
}

TEST(Loader, RefusesOptionsOutOfRange) {
  EXPECT_NE(message_of([] { data::Loader(Numbers{1}, {.batch_size = 0}); }).find("batch_size is 0"),
            std::string::npos);
  EXPECT_THROW(data::Loader(Numbers{1}, {.workers = -1}), Error);
  EXPECT_THROW(data::Loader(Numbers{1}, {.prefetch = 0}), Error);
  struct Unsized {
    std::optional<std::size_t> size() const { return std::nullopt; }
    std::int64_t get(std::int64_t index) const { return index; }
  };
  EXPECT_THROW(data::Loader(Unsized(), {}), Error);
}

// Counts how far reading ever ran ahead of the loop, and the threads it ran in.
struct Watched {
  struct Record {
    std::atomic<std::int64_t> made{0};
    std::mutex mutex;
    std::set<std::string> names;
    std::atomic<bool> alone{true};
  };
  std::shared_ptr<Record> record = std::make_shared<Record>();

  std::int64_t size() const { return 60; }
  std::int64_t get(std::int64_t index) const {
    ++record->made;
    char name[16] = {};
    pthread_getname_np(pthread_self(), name, sizeof(name));
    if (at::get_num_threads() != 1) record->alone = false;
    const std::lock_guard lock(record->mutex);
    record->names.insert(name);
    return index;
  }
};

TEST(Loader, RunsAheadNoFurtherThanItsOptionAllows) {
  const Watched watched;
  data::Loader loader(watched, {.batch_size = 1, .workers = 2, .prefetch = 3});
  std::int64_t given = 0;
  for ([[maybe_unused]] auto& batch : loader) {
    ++given;
    EXPECT_LE(watched.record->made.load(), given + 2 * 3);
  }
  EXPECT_EQ(watched.record->made.load(), 60);
}

TEST(Loader, NamesItsThreadsAndKeepsThemSingle) {
  const Watched watched;
  const int threads = at::get_num_threads();
  data::Loader loader(watched, {.batch_size = 1, .workers = 2});
  pass(loader);
  for (const std::string& name : watched.record->names) EXPECT_EQ(name.rfind("hasten-data-", 0), 0U) << name;
  EXPECT_TRUE(watched.record->alone.load());
  EXPECT_EQ(at::get_num_threads(), threads);
}

struct Grads {
  std::int64_t size() const { return 2; }
  at::Tensor get(std::int64_t) const { return at::zeros({1}, at::TensorOptions().requires_grad(true)) + 1; }
};

TEST(Loader, ReadsWithoutGradients) {
  for (const int workers : {0, 1}) {
    data::Loader loader(Grads(), {.batch_size = 2, .workers = workers});
    for (auto& batch : loader) EXPECT_FALSE(batch.requires_grad());
  }
}

TEST(Loader, GoesOnFromAnyStateAsIfNeverInterrupted) {
  using Seen = std::vector<std::pair<Ids, double>>;
  const auto look = [](auto& batch) {
    auto& [index, value] = batch;
    return std::pair(ids(index), value.sum().template item<double>());
  };
  for (const int workers : {0, 3}) {
    const data::LoaderOptions options{.batch_size = 4, .shuffle = true, .seed = 1234, .workers = workers};
    for (std::int64_t stop = 1; stop <= 16; ++stop) {
      data::Loader whole(Augmented{64}, options);
      data::Loader resumed(Augmented{64},
                           {.batch_size = 4, .shuffle = true, .seed = 99, .workers = 3 - workers});
      whole.shard(1, 2);
      resumed.shard(1, 2);
      Seen rest;
      data::LoaderState state;
      std::int64_t step = 0;
      for (int epoch = 0; epoch < 3; ++epoch)
        for (auto& batch : whole) {
          if (step >= stop) rest.push_back(look(batch));
          if (++step == stop) state = whole.state();
        }
      resumed.load_state(state);
      EXPECT_EQ(resumed.state().consumed, state.consumed);
      Seen seen;
      while (resumed.epoch() < 3)
        for (auto& batch : resumed) seen.push_back(look(batch));
      ASSERT_EQ(seen, rest) << "stopped after " << stop << " with " << workers << " workers";
    }
  }
}

TEST(Loader, SeesTheRestOnceOnAnotherNumberOfProcesses) {
  for (const std::int64_t after : {1, 2, 3}) {
    for (const std::int64_t batch : {2, 3}) {
      data::Loader before(Numbers{41}, {.batch_size = 4, .shuffle = true, .seed = 5});
      before.shard(0, 2);
      Ids order;
      data::Loader all(Numbers{41}, {.batch_size = 41, .shuffle = true, .seed = 5});
      order = joined(pass(all));
      data::LoaderState state;
      for ([[maybe_unused]] auto& b : before)
        if (before.position() == 3) state = before.state();
      EXPECT_EQ(state.consumed, 24);

      std::vector<std::vector<Ids>> of_rank;
      std::int64_t keep = 0;
      for (std::int64_t rank = 0; rank < after; ++rank) {
        data::Loader loader(Numbers{41}, {.batch_size = batch, .shuffle = true});
        loader.load_state(state);  // before or after shard must not matter
        loader.shard(rank, after);
        of_rank.emplace_back();
        const std::int64_t expected = loader.batches() - loader.position();
        keep = loader.remainder();
        for (auto& b : loader) {
          of_rank.back().push_back(ids(b));
          if (loader.is_last_batch()) break;
        }
        EXPECT_EQ(static_cast<std::int64_t>(of_rank.back().size()), expected);
        EXPECT_EQ(pass(loader).size(), static_cast<std::size_t>((41 + batch * after - 1) / (batch * after)));
      }
      Ids seen;
      for (std::size_t step = 0; step < of_rank[0].size(); ++step) {
        Ids of_step;
        for (auto& batches : of_rank)
          of_step.insert(of_step.end(), batches[step].begin(), batches[step].end());
        if (step + 1 == of_rank[0].size()) of_step.resize(static_cast<std::size_t>(keep));
        seen.insert(seen.end(), of_step.begin(), of_step.end());
      }
      EXPECT_EQ(seen, Ids(order.begin() + 24, order.end())) << after << " processes, batch " << batch;
    }
  }
}

TEST(Loader, HasNothingLeftOfAnEpochThatWasConsumed) {
  data::Loader loader(Numbers{10}, {.batch_size = 4});
  data::LoaderState state;
  for ([[maybe_unused]] auto& batch : loader) state = loader.state();
  for (const std::int64_t batch : {3, 4, 10}) {
    data::Loader resumed(Numbers{10}, {.batch_size = batch});
    resumed.load_state(state);
    EXPECT_TRUE(pass(resumed).empty());
    EXPECT_EQ(resumed.epoch(), 1);
    EXPECT_EQ(joined(pass(resumed)).size(), 10U);
  }
}

TEST(Loader, SkipsToABatchAndKeepsItsSettings) {
  data::Loader loader(Numbers{10}, {.batch_size = 4, .drop_last = true});
  loader.skip_to(1);
  EXPECT_EQ(pass(loader), (std::vector<Ids>{{4, 5, 6, 7}}));
  EXPECT_EQ(loader.remainder(), 4);
  EXPECT_EQ(pass(loader).size(), 2U);
  EXPECT_THROW(loader.skip_to(3), Error);
}

TEST(Loader, StartsAnEpochThatIsSetFromItsBeginning) {
  data::Loader loader(Numbers{10}, {.batch_size = 1});
  loader.load_state({.size = 10, .epoch = 2, .consumed = 4});
  loader.set_epoch(2);  // the epoch it is in: the position stays
  EXPECT_EQ(loader.position(), 4);
  loader.set_epoch(3);
  EXPECT_EQ(loader.position(), 0);
}

TEST(Loader, RefusesTheStateOfAnotherDataset) {
  data::Loader loader(Numbers{10}, {.batch_size = 1, .shuffle = true});
  const std::string text = message_of([&] { loader.load_state({.size = 11, .shuffle = true}); });
  EXPECT_NE(text.find("11 samples, and this one has 10"), std::string::npos) << text;
  EXPECT_THROW(loader.load_state({.size = 10, .shuffle = false}), Error);
  EXPECT_THROW(loader.load_state({.size = 10, .shuffle = true, .consumed = 11}), Error);
  EXPECT_THROW(loader.load_state({.size = 10, .shuffle = true, .epoch = -1}), Error);
}

struct Recorder final : data::LoaderObserver {
  std::string events;
  std::int64_t stop_after = -1;
  bool skip = false;
  bool on_pass_begin(data::LoaderBase&) override {
    events += '(';
    return !skip;
  }
  bool on_batch_end(data::LoaderBase& loader) override {
    events += loader.is_last_batch() ? 'E' : 'e';
    return loader.position() != stop_after;
  }
  void on_pass_end(data::LoaderBase&) noexcept override { events += ')'; }
};

TEST(Loader, TellsItsObserverOfPassesAndBatches) {
  for (const int workers : {0, 2}) {
    const auto recorder = std::make_shared<Recorder>();
    data::Loader loader(Numbers{3}, {.workers = workers});
    loader.observe(recorder);
    pass(loader);
    EXPECT_EQ(std::exchange(recorder->events, ""), "(eeE)");
    for ([[maybe_unused]] auto& batch : loader)
      if (loader.position() == 2) break;
    EXPECT_EQ(std::exchange(recorder->events, ""), "(e)");
    recorder->skip = true;
    const std::int64_t epoch = loader.epoch();
    EXPECT_TRUE(pass(loader).empty());
    EXPECT_EQ(std::exchange(recorder->events, ""), "()");
    EXPECT_EQ(loader.epoch(), epoch);
    recorder->skip = false;
    EXPECT_EQ(pass(loader).size(), 3U);
  }
}

TEST(Loader, GoesOnAfterItsObserverStoppedIt) {
  for (const int workers : {0, 2}) {
    const auto recorder = std::make_shared<Recorder>();
    recorder->stop_after = 2;
    data::Loader loader(Numbers{5}, {.workers = workers});
    loader.observe(recorder);
    EXPECT_EQ(joined(pass(loader)), (Ids{0, 1}));
    EXPECT_EQ(loader.epoch(), 0);
    EXPECT_EQ(loader.state().consumed, 2);
    recorder->stop_after = -1;
    EXPECT_EQ(joined(pass(loader)), (Ids{2, 3, 4}));
    EXPECT_EQ(loader.epoch(), 1);
  }
}

TEST(Loader, CountsTheTimeThatTheLoopWaited) {
  data::Loader loader(Numbers{100}, {.batch_size = 10});
  EXPECT_EQ(loader.wait_seconds(), 0);
  pass(loader);
  EXPECT_GT(loader.wait_seconds(), 0);
}

TEST(Loader, LetsTheLoopChangeItsBatchWithoutTouchingTheDataset) {
  const at::Tensor x = at::arange(6);
  data::Loader loader(data::tensors(x), {.batch_size = 3});
  for (auto& batch : loader) batch.zero_();
  EXPECT_EQ(ids(x), (Ids{0, 1, 2, 3, 4, 5}));
  data::Loader sharing(data::tensors(x).share_memory(), {.batch_size = 3});
  for (auto& batch : sharing) EXPECT_EQ(batch.storage().data(), x.storage().data());
}

TEST(Loader, UsesACollateFunction) {
  const auto longest = [](std::vector<std::int64_t> samples) {
    return at::full({1}, *std::max_element(samples.begin(), samples.end()), at::kLong);
  };
  data::Loader loader(Numbers{4}, {.batch_size = 2}, longest);
  EXPECT_EQ(pass(loader), (std::vector<Ids>{{1}, {3}}));
}

TEST(TensorDataset, GivesRowsOfEveryTensor) {
  const at::Tensor x = at::arange(12).view({6, 2});
  const at::Tensor y = at::arange(6).to(at::kDouble);
  data::Loader loader(data::tensors(x, y), {.batch_size = 4, .shuffle = true, .workers = 1});
  std::set<std::int64_t> seen;
  for (auto& [a, b] : loader) {
    ASSERT_EQ(a.size(0), b.size(0));
    for (std::int64_t row = 0; row < a.size(0); ++row) {
      EXPECT_EQ(a[row][0].item<std::int64_t>(), 2 * b[row].item<std::int64_t>());
      seen.insert(b[row].item<std::int64_t>());
    }
  }
  EXPECT_EQ(seen.size(), 6U);
}

TEST(TensorDataset, ReadsTensorsOfAnyLayout) {
  const at::Tensor base = at::arange(12).view({2, 6});
  for (const at::Tensor& x : {base.t(), base.t().contiguous()}) {
    const auto dataset = data::tensors(x);
    EXPECT_TRUE(dataset.get_batch(Ids{5, 0, 5}).equal(at::stack({x[5], x[0], x[5]})));
    EXPECT_TRUE(dataset.get_batch(Ids{2, 3}).equal(x.narrow(0, 2, 2)));
    EXPECT_EQ(dataset.get_batch(Ids{}).sizes(), (Ids{0, 2}));
  }
  EXPECT_THROW((void)data::tensors(base).get_batch(Ids{2}), Error);
  EXPECT_THROW((void)data::tensors(base).get_batch(Ids{-1}), Error);
}

TEST(TensorDataset, RefusesTensorsOfDifferentLengthNamingTheShapes) {
  const std::string text = message_of([] { (void)data::tensors(at::zeros({3, 2}), at::zeros({4})); });
  EXPECT_NE(text.find("[3, 2], [4]"), std::string::npos) << text;
  EXPECT_THROW((void)data::tensors(at::zeros({})), Error);
  EXPECT_THROW((void)data::tensors(at::Tensor()), Error);
}

}  // namespace
}  // namespace hasten

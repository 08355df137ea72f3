// Trainings drawn at random against a few lines of plain arithmetic.
#include <algorithm>
#include <gtest/gtest.h>
#include <random>
#include <vector>

#include "train/support.h"

namespace hasten {
namespace {

using test::Rank;
using test::run_ranks;
using test::Scalar;

/// What a training is drawn from: the values 1 .. samples, in order.
struct Draw {
  int processes;
  std::int64_t samples;
  std::int64_t batch_size;
  std::int64_t window;
  int epochs;
  bool drop_last;
  bool split_batches;
  bool even_batches;
  bool sync_with_dataloader;
  bool sync_each_batch;
  bool divide_by_all;
  int workers;
  bool count_items;

  friend std::ostream& operator<<(std::ostream& out, const Draw& d) {
    return out << d.processes << " processes, " << d.samples << " samples, batches of " << d.batch_size
               << ", windows of " << d.window << ", " << d.epochs << " epochs, drop_last " << d.drop_last
               << ", split_batches " << d.split_batches << ", even_batches " << d.even_batches
               << ", sync_with_dataloader " << d.sync_with_dataloader << ", sync_each_batch "
               << d.sync_each_batch << ", divide_by_all " << d.divide_by_all << ", workers " << d.workers
               << ", items " << d.count_items;
  }
};

Draw draw(std::mt19937& random, int processes) {
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  Draw d{};
  d.processes = processes;
  d.samples = 1 + below(40);
  d.split_batches = below(3) == 0;
  d.batch_size = (1 + below(5)) * (d.split_batches ? processes : 1);
  d.window = 1 + below(4);
  d.epochs = 1 + below(3);
  d.drop_last = below(3) == 0;
  d.even_batches = true;
  d.sync_with_dataloader = below(3) != 0;
  d.sync_each_batch = below(3) == 0;
  d.divide_by_all = below(2) == 0;
  d.workers = below(3);
  return d;
}

/// The batches of each rank in an epoch, as values: each step takes the next samples, rank 0 the first of
/// them; where a step lacks samples, it takes those from the beginning again if that is wanted.
std::vector<std::vector<std::vector<double>>> batches_of(const Draw& d) {
  const std::int64_t local = d.split_batches ? d.batch_size / d.processes : d.batch_size;
  std::vector<std::vector<std::vector<double>>> ranks(static_cast<std::size_t>(d.processes));
  for (std::int64_t begin = 0; begin < d.samples; begin += local * d.processes) {
    if (d.drop_last && begin + local * d.processes > d.samples) break;
    for (int rank = 0; rank < d.processes; ++rank) {
      std::vector<double> batch;
      for (std::int64_t i = begin + rank * local; i < begin + (rank + 1) * local; ++i)
        if (i < d.samples || (d.even_batches && d.processes > 1))
          batch.push_back(1 + static_cast<double>(i % d.samples));
      if (!batch.empty()) ranks[static_cast<std::size_t>(rank)].push_back(batch);
    }
  }
  return ranks;
}

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

/// How many of a micro-batch's samples count as items: also none.
std::int64_t items_of(const std::vector<double>& batch) {
  return static_cast<std::int64_t>(batch[0]) % 3 == 0 ? 0 : static_cast<std::int64_t>(batch.size());
}

/// The weight after the training and the number of updates. SGD with rate 1 from 0 on the loss w * mean(x),
/// or w * sum(x) over the items where they are counted.
std::pair<double, std::int64_t> expected(const Draw& d) {
  const auto ranks = batches_of(d);
  double w = 0;
  std::int64_t updates = 0;
  double sum = 0;    // of the gradients of a window, all ranks
  double items = 0;  // of a window, all ranks
  std::int64_t in_window = 0;
  for (int epoch = 0; epoch < d.epochs; ++epoch) {
    const std::size_t steps = ranks[0].size();
    for (std::size_t step = 0; step < steps; ++step) {
      ++in_window;
      for (const auto& rank : ranks) {
        const auto& batch = rank[step];
        if (d.count_items) {
          items += static_cast<double>(items_of(batch));
          sum += items_of(batch) > 0 ? mean(batch) * static_cast<double>(batch.size()) : 0;
        } else {
          sum += mean(batch);
        }
      }
      const bool ends = step + 1 == steps && d.sync_with_dataloader;
      if (in_window < d.window && !ends) continue;
      const auto divisor = static_cast<double>(d.divide_by_all ? d.window : in_window);
      if (d.count_items) {
        w -= items > 0 ? sum / items : 0;
      } else {
        w -= sum / divisor / d.processes;
      }
      ++updates;
      sum = items = 0;
      in_window = 0;
    }
  }
  return {w, updates};
}

std::pair<double, std::int64_t> train(const Draw& d) {
  Accelerator accelerator({.gradient_accumulation_steps = d.window,
                           .short_window = d.divide_by_all ? ShortWindow::kDivideByAll : ShortWindow::kMean,
                           .progress = false,
                           .sync_with_dataloader = d.sync_with_dataloader,
                           .sync_each_batch = d.sync_each_batch});
  Scalar scalar;
  data::Loader numbers(data::tensors(at::arange(1, d.samples + 1).to(at::kFloat)),
                       {.batch_size = d.batch_size,
                        .drop_last = d.drop_last,
                        .workers = d.workers,
                        .split_batches = d.split_batches,
                        .even_batches = d.even_batches});
  auto [model, optimizer, loader] = accelerator.prepare(scalar.net, scalar.sgd, numbers);
  for (int epoch = 0; epoch < d.epochs; ++epoch)
    for (auto& x : loader) {
      auto window = accelerator.accumulate(model);
      if (d.count_items) {
        const std::vector<double> batch(x.numel(), x[0].template item<double>());
        const std::int64_t items = items_of(batch);
        accelerator.backward(model(items > 0 ? x : at::zeros_like(x)), {.items = items});
      } else {
        accelerator.backward(model(x) / static_cast<double>(x.numel()));
      }
      optimizer.step();
      optimizer.zero_grad();
    }
  return {scalar.net->w.item<double>(), accelerator.updates()};
}

/// Runs `count` drawn trainings in groups, since a group of processes takes a while to start.
void check(int count, unsigned seed, bool items) {
  constexpr int kInGroup = 10;
  std::mt19937 random(seed);
  for (int done = 0; done < count; done += kInGroup) {
    const int processes = 1 + done / kInGroup % 3;
    std::vector<Draw> draws;
    for (int i = 0; i < kInGroup; ++i) {
      draws.push_back(draw(random, processes));
      draws.back().count_items = items;
    }
    run_ranks(processes, [&](Rank& rank) {
      test::join(rank);
      for (const Draw& d : draws) {
        const auto [w, updates] = train(d);
        const auto [right, right_updates] = expected(d);
        EXPECT_NEAR(w, right, 1e-5 * (1 + std::abs(right))) << d;
        EXPECT_EQ(updates, right_updates) << d;
      }
    });
  }
}

TEST(RandomTraining, AveragesOverMicroBatchesAndRanksLikeArithmetic) {
  check(90, 1, /*items=*/false);
}

TEST(RandomTraining, DividesByItemsLikeArithmetic) {
  check(60, 2, /*items=*/true);
}

TEST(RandomTraining, JoinsUnevenRanksLikeArithmetic) {
  constexpr int kInGroup = 10;
  std::mt19937 random(3);
  for (int group = 0; group < 6; ++group) {
    const int processes = 2 + group % 2;
    std::vector<Draw> draws;
    std::vector<bool> by_all;
    for (int i = 0; i < kInGroup; ++i) {
      draws.push_back(draw(random, processes));
      draws.back().even_batches = false;
      by_all.push_back(random() % 2 == 0);
    }
    run_ranks(processes, [&](Rank& rank) {
      test::join(rank);
      for (std::size_t i = 0; i < draws.size(); ++i) {
        const Draw& d = draws[i];
        const auto ranks = batches_of(d);
        double right = 0;
        for (std::size_t step = 0; step < ranks[0].size(); ++step) {
          double sum = 0;
          int active = 0;
          for (const auto& batches : ranks)
            if (step < batches.size()) {
              sum += mean(batches[step]);
              ++active;
            }
          right -= sum / (by_all[i] ? d.processes : active);
        }
        Accelerator accelerator({.progress = false});
        Scalar scalar;
        data::Loader numbers(data::tensors(at::arange(1, d.samples + 1).to(at::kFloat)),
                             {.batch_size = d.batch_size,
                              .drop_last = d.drop_last,
                              .split_batches = d.split_batches,
                              .even_batches = false});
        auto [model, optimizer, loader] = accelerator.prepare(scalar.net, scalar.sgd, numbers);
        {
          auto join = accelerator.join_uneven_inputs({.divide_by_initial_world_size = by_all[i]});
          for (auto& x : loader) {
            accelerator.backward(model(x) / static_cast<double>(x.numel()));
            optimizer.step();
            optimizer.zero_grad();
          }
        }
        EXPECT_NEAR(scalar.net->w.item<double>(), right, 1e-5 * (1 + std::abs(right)))
            << d << ", divided by all " << by_all[i];
      }
    });
  }
}

}  // namespace
}  // namespace hasten

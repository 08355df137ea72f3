#include <cmath>
#include <gtest/gtest.h>
#include <limits>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <hasten/parallel/gradients.h>
#include <hasten/parallel/strategy.h>

#include "comm/join.h"

/// What every strategy must do, whatever it does inside. A new one joins by an entry in `kSubjects`.
namespace hasten {
namespace {

using parallel::Strategy;
using test::Rank;

/// A strategy, and on how many ranks. Ranks are processes: the library has one place in a run a process.
struct Subject {
  const char* name;
  int ranks;
  std::unique_ptr<Strategy> (*make)(std::shared_ptr<comm::Group> group);
};

std::unique_ptr<Strategy> by_default(std::shared_ptr<comm::Group> group) {
  return parallel::make_strategy(std::move(group), {});
}
std::unique_ptr<Strategy> searching(std::shared_ptr<comm::Group> group) {
  return parallel::make_strategy(std::move(group), {.find_unused_parameters = true});
}
std::unique_ptr<Strategy> in_small_buckets(std::shared_ptr<comm::Group> group) {
  return parallel::make_strategy(std::move(group), {.gradient_as_bucket_view = false, .bucket_cap_mb = 1e-5});
}

constexpr Subject kSubjects[] = {{"Solo", 1, by_default},
                                 {"DataParallelOf2", 2, by_default},
                                 {"DataParallelOf3", 3, by_default},
                                 {"SearchingDataParallelOf2", 2, searching},
                                 {"DataParallelOf3InSmallBuckets", 3, in_small_buckets}};

class EveryStrategy : public testing::TestWithParam<Subject> {
 protected:
  using Body = std::function<void(Strategy&, comm::Group&)>;

  /// Runs `body` on every rank.
  void on_every_rank(const Body& body) const {
    test::run_ranks(GetParam().ranks, [&](Rank& rank) {
      const auto group = test::join(rank);
      const auto strategy = GetParam().make(group);
      body(*strategy, *group);
    });
  }
};

INSTANTIATE_TEST_SUITE_P(, EveryStrategy, testing::ValuesIn(kSubjects),
                         [](const auto& info) { return info.param.name; });

/// Parameters a {2} and b {3}, a frozen one, and a buffer; all that of rank r is r at first.
struct Model {
  explicit Model(int rank)
      : a(at::full({2}, 1.0 * rank).set_requires_grad(true)),
        b(at::full({3}, 1.0 * rank).set_requires_grad(true)),
        frozen(at::full({1}, 1.0 * rank)),
        buffer(at::full({1}, 1.0 * rank)),
        parameters({{"a", a}, {"b", b}, {"frozen", frozen}}, {{"buffer", buffer}}) {}

  /// Its gradients are x in each element of a, and 2 x in each of b.
  [[nodiscard]] at::Tensor loss(double x) const { return a.sum() * x + b.sum() * (2 * x); }
  void drop_gradients() const {
    a.mutable_grad().reset();
    b.mutable_grad().reset();
  }

  at::Tensor a;
  at::Tensor b;
  at::Tensor frozen;
  at::Tensor buffer;
  params::ParameterSet parameters;
};

constexpr parallel::BackwardOptions kPlain;

/// The mean of 1, 2, ... over the ranks.
double mean_of_ranks(const comm::Group& group) {
  return (1.0 + group.size()) / 2;
}

TEST_P(EveryStrategy, BeginsWithTheTensorsOfRank0) {
  on_every_rank([](Strategy& strategy, comm::Group& group) {
    const Model model(group.rank() + 5);
    const auto replica = strategy.attach(model.parameters);
    for (const at::Tensor& tensor : {model.a, model.b, model.frozen, model.buffer})
      EXPECT_TRUE(tensor.eq(5).all().item<bool>());
    EXPECT_FALSE(strategy.name().empty());
  });
}

TEST_P(EveryStrategy, AveragesGradientsOverRanks) {
  on_every_rank([](Strategy& strategy, comm::Group& group) {
    const Model model(0);
    const auto replica = strategy.attach(model.parameters);
    const double mean = mean_of_ranks(group);
    for (int step = 0; step < 4; ++step) {
      replica->before_forward();
      EXPECT_EQ(strategy.backward(model.loss(group.rank() + 1), {}, true, kPlain), group.size());
      EXPECT_TRUE(model.a.grad().eq(mean).all().item<bool>());
      EXPECT_TRUE(model.b.grad().eq(2 * mean).all().item<bool>());
      EXPECT_FALSE(model.frozen.grad().defined());
      model.drop_gradients();
    }
  });
}

TEST_P(EveryStrategy, WeighsTheLoss) {
  on_every_rank([](Strategy& strategy, comm::Group& group) {
    const Model model(0);
    const auto replica = strategy.attach(model.parameters);
    const auto weight = [](double value) { return at::full({}, value); };
    strategy.backward(model.loss(group.rank() + 1), weight(0.25), true, kPlain);
    EXPECT_TRUE(model.a.grad().eq(0.25 * mean_of_ranks(group)).all().item<bool>());
  });
}

TEST_P(EveryStrategy, KeepsGradientsLocalUntilOneIsReduced) {
  on_every_rank([](Strategy& strategy, comm::Group& group) {
    const Model model(0);
    const auto replica = strategy.attach(model.parameters);
    const double mean = mean_of_ranks(group);
    for (int window = 0; window < 3; ++window) {
      EXPECT_EQ(strategy.backward(model.loss(group.rank() + 1), {}, false, kPlain), 1);
      EXPECT_TRUE(model.a.grad().eq(group.rank() + 1).all().item<bool>());
      strategy.backward(model.loss(10), {}, true, kPlain);
      EXPECT_TRUE(model.a.grad().eq(10 + mean).all().item<bool>());
      // A further pass in the same step adds to what is reduced already.
      strategy.backward(model.loss(group.rank() + 1), {}, true, kPlain);
      EXPECT_TRUE(model.b.grad().eq(2 * (10 + 2 * mean)).all().item<bool>());
      model.drop_gradients();
    }
  });
}

TEST_P(EveryStrategy, ReducesTheModelsThatALossReaches) {
  on_every_rank([](Strategy& strategy, comm::Group& group) {
    const Model first(0);
    const Model second(0);
    const auto replica_of_first = strategy.attach(first.parameters);
    const auto replica_of_second = strategy.attach(second.parameters);
    const double mean = mean_of_ranks(group);
    for (int step = 0; step < 3; ++step) {
      strategy.backward(first.loss(group.rank() + 1), {}, true, kPlain);
      EXPECT_TRUE(first.a.grad().eq(mean).all().item<bool>());
      EXPECT_FALSE(second.a.grad().defined() && second.a.grad().ne(0).any().item<bool>());
      first.drop_gradients();
      strategy.backward(first.loss(1) + second.loss(group.rank() + 1), {}, true, kPlain);
      EXPECT_TRUE(first.a.grad().eq(1).all().item<bool>());
      EXPECT_TRUE(second.a.grad().eq(mean).all().item<bool>());
      first.drop_gradients();
      second.drop_gradients();
    }
  });
}

TEST_P(EveryStrategy, KeepsBuffersInStep) {
  on_every_rank([](Strategy& strategy, comm::Group& group) {
    const Model model(0);
    const auto replica = strategy.attach(model.parameters);
    for (int step = 1; step <= 3; ++step) {
      replica->before_forward();
      model.buffer.fill_(10.0 * step + group.rank());  // as a batch norm does in its forward pass
      strategy.backward(model.loss(1), {}, true, kPlain);
      EXPECT_EQ(model.buffer.item<double>(), 10.0 * step) << "rank 0's";
      model.drop_gradients();
    }
  });
}

TEST_P(EveryStrategy, KnowsTheNormAndAgreesOnWhatIsNotFinite) {
  on_every_rank([](Strategy& strategy, comm::Group& group) {
    const Model model(0);
    const auto replica = strategy.attach(model.parameters);
    strategy.backward(model.loss(group.rank() + 1), {}, true, kPlain);
    const auto gradients = parallel::gradients_of({model.a, model.b});
    EXPECT_NEAR(strategy.gradient_norm(gradients, 2).item<double>(),
                mean_of_ranks(group) * std::sqrt(2 + 3 * 4.0), 1e-5);
    EXPECT_EQ(strategy.gradient_norm(gradients, std::numeric_limits<double>::infinity()).item<double>(),
              2 * mean_of_ranks(group));
    EXPECT_FALSE(strategy.any_nonfinite(at::zeros({})));
    EXPECT_TRUE(strategy.any_nonfinite(at::ones({})));
  });
}

TEST_P(EveryStrategy, CopiesAndAveragesModels) {
  on_every_rank([](Strategy& strategy, comm::Group& group) {
    const Model model(0);
    const auto replica = strategy.attach(model.parameters);
    const at::NoGradGuard no_grad;
    model.a.fill_(group.rank() + 1);
    replica->average();
    EXPECT_TRUE(model.a.eq(mean_of_ranks(group)).all().item<bool>());
    model.b.fill_(group.rank() + 1);
    model.buffer.fill_(group.rank() + 1);
    replica->copy_from(group.size() - 1);
    EXPECT_TRUE(model.b.eq(group.size()).all().item<bool>());
    EXPECT_EQ(model.buffer.item<double>(), group.size());
  });
}

TEST_P(EveryStrategy, GoesOnWithRanksWithoutData) {
  // Rank r has data for r + 1 steps.
  for (const bool divide_by_active : {false, true})
    on_every_rank([&](Strategy& strategy, comm::Group& group) {
      const Model model(0);
      const auto replica = strategy.attach(model.parameters);
      strategy.begin_join(divide_by_active);
      for (int step = 0; step <= group.rank(); ++step) {
        const int active = group.size() - step;
        const int divisor = divide_by_active ? active : group.size();
        EXPECT_EQ(strategy.backward(model.loss(1), {}, true, kPlain), divisor);
        EXPECT_FLOAT_EQ(model.a.grad()[0].item<float>(),
                        static_cast<float>(active) / static_cast<float>(divisor));
        model.drop_gradients();
      }
      int rounds = 0;
      while (strategy.backward_without_data().active > 0) ++rounds;
      strategy.end_join();
      EXPECT_EQ(rounds, group.size() - 1 - group.rank());
      model.drop_gradients();
      strategy.backward(model.loss(group.rank() + 1), {}, true, kPlain);
      EXPECT_TRUE(model.a.grad().eq(mean_of_ranks(group)).all().item<bool>()) << "all ranks count again";
    });
}

TEST_P(EveryStrategy, EndsInAnyOrder) {
  on_every_rank([](Strategy& strategy, comm::Group& group) {
    const Model model(0);
    auto first = strategy.attach(model.parameters);
    const Model other(0);
    const auto second = strategy.attach(other.parameters);
    strategy.backward(model.loss(1) + other.loss(1), {}, true, kPlain);
    first.reset();
    other.drop_gradients();
    strategy.backward(other.loss(group.rank() + 1), {}, true, kPlain);
    EXPECT_TRUE(other.a.grad().eq(mean_of_ranks(group)).all().item<bool>());
    // The model that was detached trains on alone.
    model.drop_gradients();
    model.loss(3).backward();
    EXPECT_TRUE(model.a.grad().eq(3).all().item<bool>());
  });
}

}  // namespace
}  // namespace hasten

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <sys/resource.h>
#include <unistd.h>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/quantize_per_tensor.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <hasten/base/error.h>
#include <hasten/base/log.h>
#include <hasten/comm/collectives.h>
#include <hasten/comm/group.h>

#include "comm/join.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace hasten {
namespace {

using test::error_of;
using test::join;
using test::kWays;

using comm::Group;
using comm::GroupOptions;
using comm::ReduceOp;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Shape = std::vector<std::int64_t>;

template <class T>
std::vector<T> values(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.contiguous();
  return {flat.const_data_ptr<T>(), flat.const_data_ptr<T>() + flat.numel()};
}

at::Tensor numbers(std::vector<double> list, at::ScalarType type) {
  return at::tensor(list, at::kDouble).to(type);
}

void expect_same(const at::Tensor& found, const at::Tensor& expected) {
  EXPECT_EQ(found.scalar_type(), expected.scalar_type());
  EXPECT_EQ(found.sizes(), expected.sizes());
  EXPECT_TRUE(found.equal(expected)) << found << " instead of " << expected;
}

const std::vector<at::ScalarType> kNumbers{
    at::kFloat, at::kDouble, at::kHalf,   at::kBFloat16, at::kByte,   at::kChar,         at::kShort,
    at::kInt,   at::kLong,   at::kUInt16, at::kUInt32,   at::kUInt64, at::kComplexFloat, at::kComplexDouble};

TEST(Group, ReducesEveryTypeOfNumber) {
  for (const bool shared : kWays)
    for (const int size : {2, 3}) {
      SCOPED_TRACE(testing::Message() << size << " ranks, shared memory " << shared);
      test::run_ranks(size, [&](test::Rank& rank) {
        const auto group = join(rank, shared);
        EXPECT_EQ(group->uses_shared_memory(), shared);
        for (const at::ScalarType type : kNumbers) {
          SCOPED_TRACE(c10::toString(type));
          const double r = rank.index();
          const at::Tensor mine = numbers({1 + r, 5 - r, 2}, type);
          const double sum1 = size + size * (size - 1) / 2.0;
          const double sum2 = 5 * size - size * (size - 1) / 2.0;
          expect_same(group->all_reduce(mine, ReduceOp::kSum), numbers({sum1, sum2, 2.0 * size}, type));
          const at::Tensor mean = group->all_reduce(mine, ReduceOp::kMean);
          const auto mean_type = at::isIntegralType(type, false) ? at::kFloat : type;
          EXPECT_EQ(mean.scalar_type(), mean_type);
          EXPECT_TRUE(mean.to(at::kComplexDouble)
                          .allclose(numbers({sum1 / size, sum2 / size, 2}, at::kComplexDouble), 1e-2, 1e-2))
              << mean;
          if (at::isComplexType(type)) {
            EXPECT_THAT(error_of([&] { return group->all_reduce(mine, ReduceOp::kMax); }).second,
                        HasSubstr("complex"));
            continue;
          }
          expect_same(group->all_reduce(mine, ReduceOp::kMax), numbers({double(size), 5, 2}, type));
          expect_same(group->all_reduce(mine, ReduceOp::kMin), numbers({1, 6.0 - size, 2}, type));
          expect_same(group->all_reduce(mine, ReduceOp::kProduct),
                      numbers({size == 2 ? 2.0 : 6.0, size == 2 ? 20.0 : 60.0, size == 2 ? 4.0 : 8.0}, type));
          expect_same(mine, numbers({1 + r, 5 - r, 2}, type));
        }
      });
    }
}

TEST(Group, ReducesTheEndsOfTheIntegers) {
  test::run_ranks(2, [](test::Rank& rank) {
    const auto group = join(rank);
    const std::uint64_t low = 3;
    const std::uint64_t high = UINT64_MAX - 1;
    at::Tensor tensor = at::empty({1}, at::kUInt64);
    tensor.mutable_data_ptr<std::uint64_t>()[0] = rank.index() == 0 ? low : high;
    EXPECT_EQ(values<std::uint64_t>(group->all_reduce(tensor, ReduceOp::kMax))[0], high);
    EXPECT_EQ(values<std::uint64_t>(group->all_reduce(tensor, ReduceOp::kMin))[0], low);
    EXPECT_EQ(values<std::uint64_t>(group->all_reduce(tensor, ReduceOp::kSum))[0], 1U);  // wraps
    const at::Tensor small = at::full({1}, 30'000, at::kShort);
    EXPECT_EQ(values<std::int16_t>(group->all_reduce(small, ReduceOp::kSum))[0], -5536);
  });
}

TEST(Group, ReducesTruthValuesToAnyAllNumberAndPart) {
  for (const bool shared : kWays)
    test::run_ranks(2, [&](test::Rank& rank) {
      const auto group = join(rank, shared);
      const bool first = rank.index() == 0;
      const at::Tensor mine = numbers({double(first), 0, 1}, at::kBool);
      expect_same(group->all_reduce(mine, ReduceOp::kMax), numbers({1, 0, 1}, at::kBool));
      expect_same(group->all_reduce(mine, ReduceOp::kMin), numbers({0, 0, 1}, at::kBool));
      expect_same(group->all_reduce(mine, ReduceOp::kProduct), numbers({0, 0, 1}, at::kBool));
      expect_same(group->all_reduce(mine, ReduceOp::kSum), numbers({1, 0, 2}, at::kLong));
      expect_same(group->all_reduce(mine, ReduceOp::kMean), numbers({0.5, 0, 1}, at::kFloat));
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean}) {
        const auto [code, text] = error_of([&] { group->all_reduce_(mine, op); });
        EXPECT_EQ(code, ErrorCode::kInvalidArgument);
        EXPECT_THAT(text, HasSubstr("of bool is of another type"));
      }
      group->barrier();  // the group is fine after a refusal
    });
}

TEST(Group, MovesEveryTypeAndShape) {
  for (const bool shared : kWays)
    test::run_ranks(3, [&](test::Rank& rank) {
      const auto group = join(rank, shared);
      std::vector<at::ScalarType> types = kNumbers;
      types.insert(types.end(), {at::kBool, at::kFloat8_e4m3fn, at::kComplexHalf});
      for (const at::ScalarType type : types)
        for (const Shape& shape : std::vector<Shape>{{}, {0}, {0, 3}, {3, 0}, {1}, {4, 5}, {2, 1, 3, 2}}) {
          SCOPED_TRACE(testing::Message() << c10::toString(type) << at::IntArrayRef(shape));
          const auto of = [&](int r) { return at::full(shape, r, at::kDouble).to(type); };
          const at::Tensor mine = of(rank.index());
          const at::Tensor all = group->gather(mine);
          Shape expected = shape.empty() ? Shape{1} : shape;
          expected[0] *= 3;
          EXPECT_EQ(all.sizes(), at::IntArrayRef(expected));
          EXPECT_EQ(all.scalar_type(), type);
          if (mine.numel() > 0)
            for (int r = 0; r < 3; ++r) {
              const at::Tensor part = all.narrow(0, r * expected[0] / 3, expected[0] / 3);
              EXPECT_TRUE(
                  part.to(at::kComplexDouble).equal(of(r).reshape(part.sizes()).to(at::kComplexDouble)));
            }
          at::Tensor copy = mine.clone();
          group->broadcast_(copy, 2);
          EXPECT_TRUE(copy.to(at::kComplexDouble).equal(of(2).to(at::kComplexDouble)));
        }
    });
}

TEST(Group, TakesStridesConjugatesAndTensorsThatNeedGradients) {
  test::run_ranks(2, [](test::Rank& rank) {
    const auto group = join(rank);
    const at::Tensor base = at::arange(6, at::kFloat).view({2, 3}) + rank.index();
    const at::Tensor mine = base.t();
    expect_same(group->all_reduce(mine, ReduceOp::kSum),
                (at::arange(6, at::kFloat).view({2, 3}) * 2 + 1).t().contiguous());
    expect_same(group->gather(mine).narrow(0, 3, 3),
                (at::arange(6, at::kFloat).view({2, 3}) + 1).t().contiguous());
    at::Tensor wide = at::zeros({2, 8}, at::kFloat) + rank.index();
    const at::Tensor columns = wide.narrow(1, 2, 3);
    group->all_reduce_(columns, ReduceOp::kSum);
    EXPECT_EQ(wide.sum().item<float>(), rank.index() == 0 ? 6.0F : 16.0F);
    group->broadcast_(columns, 1);
    const at::Tensor complex = at::complex(at::ones({2}), at::ones({2}) * (rank.index() + 1));
    const at::Tensor sum = group->all_reduce(complex.conj(), ReduceOp::kSum);
    expect_same(sum, at::complex(at::full({2}, 2.0F), at::full({2}, -3.0F)));
    at::Tensor weight = at::ones({3}, at::kFloat).requires_grad_();
    EXPECT_FALSE(group->gather(weight).requires_grad());
    group->all_reduce_(weight, ReduceOp::kSum);
    EXPECT_EQ(values<float>(weight.detach()), (std::vector<float>{2, 2, 2}));
    EXPECT_TRUE(weight.requires_grad());
  });
}

TEST(Group, IsRightAroundTheSizeWhereTheWayChanges) {
  test::run_ranks(2, [](test::Rank& rank) {
    const auto group = join(rank);
    std::mt19937 random(7);  // the same on both ranks
    for (int round = 0; round < 60; ++round) {
      const std::int64_t middle = std::vector<std::int64_t>{1 << 14, 1 << 16, 1 << 18, 1 << 20}[random() % 4];
      const std::int64_t count = middle - 40 + static_cast<std::int64_t>(random() % 80);
      const at::Tensor base = at::arange(count, at::kFloat).remainder(1000);
      at::Tensor tensor = base * (rank.index() + 1);
      group->all_reduce_(tensor, ReduceOp::kMean);
      EXPECT_TRUE(tensor.equal(base * 1.5)) << count;
      at::Tensor copy = base + rank.index();
      group->broadcast_(copy, 1);
      EXPECT_TRUE(copy.equal(base + 1)) << count;
      EXPECT_TRUE(group->gather(base + rank.index()).narrow(0, count, count).equal(base + 1)) << count;
    }
  });
}

TEST(Group, GivesTheSameBitsOnAllRanks) {
  for (const bool shared : kWays) {
    const auto reports = test::run_ranks(3, [&](test::Rank& rank) {
      const auto group = join(rank, shared);
      for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf})
        for (const std::int64_t count : {5, 3000, 70'000, 700'000}) {
          std::mt19937 random(static_cast<unsigned>(rank.index() + 1));
          at::Tensor tensor = at::empty({count}, at::kFloat);
          for (std::int64_t i = 0; i < count; ++i)
            tensor.mutable_data_ptr<float>()[i] = std::normal_distribution<float>(0, 100)(random);
          tensor = group->all_reduce(tensor.to(type), ReduceOp::kMean);
          rank.report(std::string(static_cast<const char*>(tensor.data_ptr()), tensor.nbytes()));
        }
    });
    EXPECT_GT(reports[0].size(), 700'000U * 8);
    EXPECT_TRUE(reports[0] == reports[1]);
    EXPECT_TRUE(reports[0] == reports[2]);
  }
}

TEST(Group, GathersTensorsOfDifferentShapes) {
  for (const bool shared : kWays)
    test::run_ranks(3, [&](test::Rank& rank) {
      const auto group = join(rank, shared);
      const std::vector<at::Tensor> all{numbers({1, 2}, at::kLong), numbers({}, at::kFloat),
                                        at::full({2, 2}, 7, at::kBool)};
      const auto got = group->gather_varied(all[static_cast<std::size_t>(rank.index())]);
      ASSERT_EQ(got.size(), 3U);
      for (std::size_t r = 0; r < 3; ++r) expect_same(got[r], all[r]);
    });
}

TEST(Group, MovesBytesOfAnyLength) {
  for (const bool shared : kWays)
    test::run_ranks(3, [&](test::Rank& rank) {
      const auto group = join(rank, shared);
      const std::vector<std::string> all{"", std::string("a\0b", 3), std::string(2'000'000, 'x')};
      EXPECT_TRUE(group->all_gather_bytes(all[static_cast<std::size_t>(rank.index())]) == all);
      EXPECT_THAT(group->all_gather_bytes(""), ElementsAre("", "", ""));
      for (int root = 0; root < 3; ++root)
        EXPECT_TRUE(group->broadcast_bytes(all[static_cast<std::size_t>(rank.index())], root) ==
                    all[static_cast<std::size_t>(root)]);
    });
}

TEST(Group, RefusesDifferentShapesBeforeItExchanges) {
  for (const bool shared : kWays)
    test::run_ranks(2, [&](test::Rank& rank) {
      const auto group = join(rank, shared);
      const at::Tensor mine =
          rank.index() == 0 ? numbers({1, 2}, at::kFloat) : numbers({3, 4, 5}, at::kFloat);
      const auto [code, text] = error_of([&] { return group->gather(mine); });
      EXPECT_EQ(code, ErrorCode::kMismatch);
      EXPECT_THAT(text, AllOf(HasSubstr("[gather]"), HasSubstr("rank 0 float32 {2}"),
                              HasSubstr("rank 1 float32 {3}"), HasSubstr("gather_varied")));
      const at::Tensor turned = at::zeros(rank.index() == 0 ? Shape{2, 3} : Shape{3, 2});
      EXPECT_EQ(error_of([&] { return group->all_reduce(turned, ReduceOp::kSum); }).first,
                ErrorCode::kMismatch);
      EXPECT_EQ(error_of([&] { group->broadcast_(turned); }).first, ErrorCode::kMismatch);
      const at::Tensor typed = at::zeros({2}, rank.index() == 0 ? at::kInt : at::kFloat);
      EXPECT_THAT(error_of([&] { return group->gather(typed); }).second,
                  AllOf(HasSubstr("rank 0 int32 {2}"), HasSubstr("rank 1 float32 {2}")));
      const auto op = rank.index() == 0 ? ReduceOp::kSum : ReduceOp::kMax;
      EXPECT_THAT(error_of([&] { return group->all_reduce(mine.narrow(0, 0, 2), op); }).second,
                  AllOf(HasSubstr("all_reduce (sum)"), HasSubstr("all_reduce (max)")));
      // Nothing was lost: the group goes on.
      expect_same(group->all_reduce(at::ones({2}), ReduceOp::kSum), at::full({2}, 2.0F));
    });
}

TEST(Group, RefusesDifferentOperations) {
  test::run_ranks(2, [](test::Rank& rank) {
    const auto group = join(rank);
    const auto [code, text] = error_of([&] {
      if (rank.index() == 0)
        static_cast<void>(group->gather(at::zeros({4})));
      else
        group->barrier();
    });
    EXPECT_EQ(code, ErrorCode::kMismatch);
    EXPECT_THAT(text, AllOf(HasSubstr("rank 0 gather of float32 {4}"), HasSubstr("rank 1 barrier")));
    group->barrier();
  });
}

TEST(Group, RefusesWhatItCannotMove) {
  const auto group = Group::solo(at::kCPU);
  const auto refuses = [&](const at::Tensor& tensor, const char* reason) {
    for (const auto& act : std::vector<std::function<void()>>{
             [&] { return group->gather(tensor); }, [&] { group->broadcast_(tensor); },
             [&] { return group->all_reduce(tensor, ReduceOp::kSum); },
             [&] { return group->gather_varied(tensor); }}) {
      const auto [code, text] = error_of(act);
      EXPECT_EQ(code, ErrorCode::kInvalidArgument);
      EXPECT_THAT(text, HasSubstr(reason));
    }
  };
  refuses(at::Tensor(), "undefined");
  refuses(at::ones({2, 2}).to_sparse(), "to_dense");
  refuses(at::quantize_per_tensor(at::ones({2}), 0.1, 0, at::kQUInt8), "dequantize");
  EXPECT_EQ(error_of([&] { group->broadcast_(at::ones({1}), 1); }).first, ErrorCode::kInvalidArgument);
  EXPECT_EQ(error_of([&] { group->all_reduce_(at::ones({1}, at::kLong), ReduceOp::kMean); }).first,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(error_of([&] { return group->send(at::ones({1}), 0); }).first, ErrorCode::kInvalidArgument);
  EXPECT_EQ(error_of([&] { return group->all_reduce_async(at::ones({3, 2}).t(), ReduceOp::kSum); }).first,
            ErrorCode::kInvalidArgument);
}

TEST(Group, AProcessAloneGetsItsOwnBack) {
  const auto group = Group::solo(at::kCPU);
  EXPECT_EQ(group->size(), 1);
  const at::Tensor tensor = numbers({1, 2}, at::kInt);
  expect_same(group->all_reduce(tensor, ReduceOp::kSum), tensor);
  expect_same(group->all_reduce(tensor, ReduceOp::kMean), numbers({1, 2}, at::kFloat));
  expect_same(group->gather(tensor), tensor);
  expect_same(group->gather(at::full({}, 3.0F)), at::full({1}, 3.0F));
  expect_same(group->gather_varied(tensor).at(0), tensor);
  group->broadcast_(tensor);
  group->barrier();
  EXPECT_THAT(group->all_gather_bytes("x"), ElementsAre("x"));
  EXPECT_EQ(group->broadcast_bytes("y"), "y");
  at::Tensor part = at::empty({2}, at::kInt);
  group->reduce_scatter(part, tensor, ReduceOp::kSum).wait();
  expect_same(part, tensor);
  EXPECT_EQ(group->subgroup({0})->size(), 1);
  expect_same(comm::pad_tensor_across(*group, tensor, 0, 0, false), tensor);
}

// ---- asynchronous calls, subgroups, batches ----

TEST(Group, RunsCallsInTheBackground) {
  for (const bool shared : kWays)
    test::run_ranks(3, [&](test::Rank& rank) {
      const auto group = join(rank, shared);
      const auto r = static_cast<double>(rank.index());
      for (const auto type :
           {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kInt, at::kLong, at::kByte})
        for (const std::int64_t count : {0, 1, 1000, 300'000}) {
          SCOPED_TRACE(testing::Message() << c10::toString(type) << " " << count);
          at::Tensor summed = at::full({count}, r + 1, at::kDouble).to(type);
          auto first = group->all_reduce_async(summed, ReduceOp::kSum);
          at::Tensor input = at::full({3 * count}, 1, type);
          at::Tensor output = at::zeros({count}, type);
          auto second = group->reduce_scatter(output, input, ReduceOp::kSum);
          at::Tensor part = at::full({count}, r, at::kDouble).to(type);
          at::Tensor all = at::zeros({3 * count}, type);
          auto third = group->all_gather_into(all, part);
          third.wait();
          second.wait();
          first.wait();
          first.wait();
          EXPECT_TRUE(summed.equal(at::full({count}, 6, type)));
          EXPECT_TRUE(output.equal(at::full({count}, 3, type)));
          for (int other = 0; other < 3; ++other)
            EXPECT_TRUE(all.narrow(0, other * count, count).equal(at::full({count}, other, type)));
        }
      for (const std::int64_t count : {10, 400'000}) {
        at::Tensor mean = at::full({count}, r, at::kFloat);
        group->all_reduce_async(mean, ReduceOp::kMean).wait();
        EXPECT_TRUE(mean.equal(at::ones({count})));
        at::Tensor part = at::zeros({count});
        group->reduce_scatter(part, at::full({3 * count}, r, at::kFloat), ReduceOp::kMean).wait();
        EXPECT_TRUE(part.equal(at::ones({count})));
      }
    });
}

TEST(Group, ScattersEachRanksOwnPart) {
  test::run_ranks(3, [](test::Rank& rank) {
    const auto group = join(rank);
    const at::Tensor input = at::arange(12, at::kFloat) * (rank.index() + 1);
    at::Tensor part = at::zeros({2, 2});
    group->reduce_scatter(part, input, ReduceOp::kSum).wait();
    expect_same(part, ((at::arange(4, at::kFloat) + 4 * rank.index()) * 6).view({2, 2}));
    const auto [code, text] =
        error_of([&] { return group->reduce_scatter(part, at::ones({11}), ReduceOp::kSum); });
    EXPECT_EQ(code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(text, AllOf(HasSubstr("float32 {11}"), HasSubstr("float32 {2, 2}")));
  });
}

TEST(Group, SendsTaggedMessages) {
  test::run_ranks(3, [](test::Rank& rank) {
    const auto group = join(rank);
    const int next = (rank.index() + 1) % 3;
    const int previous = (rank.index() + 2) % 3;
    for (const auto type : {at::kFloat, at::kBool, at::kBFloat16, at::kComplexFloat}) {
      const at::Tensor one = at::full({3}, rank.index(), at::kDouble).to(type);
      const at::Tensor two = at::full({100'000}, rank.index(), at::kDouble).to(type);
      at::Tensor got_one = at::zeros({3}, type);
      at::Tensor got_two = at::zeros({100'000}, type);
      auto sent_two = group->send(two, next, 2);
      auto sent_one = group->send(one, next, 1);
      auto received_one = group->recv(got_one, previous, 1);
      auto received_two = group->recv(got_two, previous, 2);
      received_one.wait();
      received_two.wait();
      sent_one.wait();
      sent_two.wait();
      expect_same(got_one, at::full({3}, previous, at::kDouble).to(type));
      expect_same(got_two, at::full({100'000}, previous, at::kDouble).to(type));
    }
    // Between the calls of two ranks, those of all go their way.
    comm::Pending sent;
    if (rank.index() == 0) sent = group->send(at::ones({5}), 2, 9);
    group->barrier();
    at::Tensor late = at::zeros({5});
    if (rank.index() == 2) {
      group->recv(late, 0, 9).wait();
      expect_same(late, at::ones({5}));
    }
    sent.wait();
  });
}

TEST(Group, HasSubgroups) {
  for (const bool shared : kWays)
    test::run_ranks(4, [&](test::Rank& rank) {
      const auto group = join(rank, shared);
      const bool even = rank.index() % 2 == 0;
      const auto half = group->subgroup(even ? std::vector<int>{2, 0} : std::vector<int>{1, 3});
      EXPECT_EQ(half->size(), 2);
      EXPECT_EQ(half->rank(), even ? 1 - rank.index() / 2 : rank.index() / 2);
      EXPECT_EQ(values<double>(half->gather(at::full({1}, double(rank.index()), at::kDouble))),
                even ? (std::vector<double>{2, 0}) : (std::vector<double>{1, 3}));
      EXPECT_EQ(group->all_reduce(at::ones({1}), ReduceOp::kSum).item<float>(), 4);
      if (rank.index() == 3) {
        const auto [code, text] = error_of([&] { return group->subgroup({0, 1}); });
        EXPECT_EQ(code, ErrorCode::kInvalidArgument);
        EXPECT_THAT(text, HasSubstr("rank 3 is not among ranks 0, 1"));
        EXPECT_EQ(error_of([&] { return group->subgroup({3, 3}); }).first, ErrorCode::kInvalidArgument);
        EXPECT_EQ(error_of([&] { return group->subgroup({3, 4}); }).first, ErrorCode::kInvalidArgument);
      }
      group->barrier();
      const auto again = group->subgroup({0, 1, 2, 3});
      const auto once_more = group->subgroup({0, 1, 2, 3});
      EXPECT_EQ(again->all_reduce(at::ones({1}), ReduceOp::kSum).item<float>(), 4);
      EXPECT_EQ(once_more->all_reduce(at::ones({1}), ReduceOp::kSum).item<float>(), 4);
    });
}

struct Sample {
  at::Tensor image;
  std::map<std::string, at::Tensor> labels;
  std::string name;
  at::Tensor absent;
};

TEST(Collectives, GoThroughBatchesOfAnyStructure) {
  test::run_ranks(2, [](test::Rank& rank) {
    const auto group = join(rank);
    const float r = static_cast<float>(rank.index());
    const Sample sample{at::full({2, 2}, r), {{"a", at::full({}, 10 * r)}}, "name", {}};
    const Sample gathered = comm::gather(*group, sample);
    EXPECT_EQ(values<float>(gathered.image), (std::vector<float>{0, 0, 0, 0, 1, 1, 1, 1}));
    expect_same(gathered.labels.at("a"), numbers({0, 10}, at::kFloat));
    EXPECT_EQ(gathered.name, "name");
    EXPECT_FALSE(gathered.absent.defined());
    const Sample reduced = comm::reduce(*group, sample, ReduceOp::kMean);
    EXPECT_EQ(reduced.labels.at("a").item<float>(), 5);
    const Sample copied = comm::broadcast(*group, sample, 1);
    EXPECT_EQ(copied.labels.at("a").item<float>(), 10);
    EXPECT_EQ(sample.labels.at("a").item<float>(), 10 * r);
  });
}

TEST(Collectives, SendObjectsOfAnyKind) {
  struct Row {
    std::string name;
    std::vector<std::optional<double>> scores;
    std::map<std::string, at::Tensor> tensors;
    bool operator==(const Row& other) const {
      return name == other.name && scores == other.scores && tensors.size() == other.tensors.size();
    }
  };
  test::run_ranks(3, [](test::Rank& rank) {
    const auto group = join(rank);
    const auto row_of = [](int r) {
      return Row{"rank " + std::to_string(r) + std::string("\0x", 2),
                 {1.5 * r, std::nullopt},
                 {{"t", at::full({r, 2}, r, at::kBFloat16)}, {"none", {}}}};
    };
    const auto all = comm::gather_object(*group, row_of(rank.index()));
    ASSERT_EQ(all.size(), 3U);
    for (int r = 0; r < 3; ++r) {
      EXPECT_EQ(all[static_cast<std::size_t>(r)], row_of(r));
      expect_same(all[static_cast<std::size_t>(r)].tensors.at("t"), row_of(r).tensors.at("t"));
    }
    std::vector<Row> rows;
    if (rank.index() == 1) rows = {row_of(4), row_of(5)};
    comm::broadcast_object_list(*group, rows, 1);
    EXPECT_EQ(rows, (std::vector<Row>{row_of(4), row_of(5)}));
  });
}

TEST(Group, ComparesCallsThatReturnAtOnceInDebugMode) {
  test::run_ranks(2, [](test::Rank& rank) {
    const auto group =
        comm::Group::connect(rank.process(), at::kCPU, {.timeout = std::chrono::seconds(30), .debug = true});
    const auto [code, text] =
        error_of([&] { (void)group->all_reduce_async(at::ones({2 + rank.index()}), ReduceOp::kSum); });
    EXPECT_EQ(code, ErrorCode::kMismatch);
    EXPECT_THAT(text, testing::AllOf(HasSubstr("all_reduce_async"), HasSubstr("rank 0 float32 {2}"),
                                     HasSubstr("rank 1 float32 {3}")));
    const at::Tensor out = at::zeros({4});
    EXPECT_THAT(error_of([&] {
                  if (rank.index() == 0) {
                    (void)group->all_gather_into(out, at::ones({2}));
                  } else {
                    (void)group->reduce_scatter(at::zeros({2}), out, ReduceOp::kSum);
                  }
                }).second,
                HasSubstr("different calls"));
    at::Tensor fine = at::ones({3});
    group->all_reduce_async(fine, ReduceOp::kSum).wait();  // the group is fine after a refusal
    EXPECT_EQ(fine[0].item<float>(), 2);
  });
}

TEST(Collectives, PadToTheLongestOfAllRanks) {
  test::run_ranks(2, [](test::Rank& rank) {
    const auto group = join(rank);
    const at::Tensor mine = rank.index() == 0 ? numbers({1, 2}, at::kLong) : numbers({3, 4, 5}, at::kLong);
    const at::Tensor padded = comm::pad_across(*group, mine, 0, -100);
    expect_same(group->gather(padded), numbers({1, 2, -100, 3, 4, 5}, at::kLong));
    expect_same(group->gather(comm::pad_across(*group, mine, -1, 0, true)),
                numbers({0, 1, 2, 3, 4, 5}, at::kLong));
    expect_same(comm::pad_across(*group, mine, 1), mine);
    expect_same(comm::pad_across(*group, at::full({}, 4.0F)), at::full({}, 4.0F));
    const at::Tensor table = at::ones({2, 1 + 2 * rank.index()});
    const at::Tensor wide = comm::pad_across(*group, table, 1, 0.5);
    EXPECT_EQ(wide.sizes(), (at::IntArrayRef{2, 3}));
    EXPECT_EQ(wide.sum().item<float>(), rank.index() == 0 ? 4 : 6);
    const at::Tensor none = at::zeros({rank.index() * 2, 3});
    EXPECT_EQ(comm::pad_across(*group, none, 0, 7).sum().item<float>(), rank.index() == 0 ? 42 : 0);
  });
}

}  // namespace
}  // namespace hasten

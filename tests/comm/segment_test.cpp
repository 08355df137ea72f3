#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <new>
#include <numeric>
#include <random>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <thread>
#include <unistd.h>

#include <hasten/base/error.h>

#include "comm/shared_segment.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace hasten {
namespace {

using test::error_of;

using comm::Element;
using comm::Reduction;
using comm::SharedSegment;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using ::testing::HasSubstr;

/// How the ranks of these tests find each other: memory that they share by being forked.
struct Meeting {
  std::array<char, 128> ticket{};
  std::atomic<bool> made{false};
  std::atomic<int> attached{0};
  std::atomic<int> flag{0};

  static Meeting* make() {
    void* memory =
        ::mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return new (memory) Meeting;
  }

  std::unique_ptr<SharedSegment> join(const test::Rank& rank, std::size_t slot_bytes = 4096) {
    std::unique_ptr<SharedSegment> segment;
    if (rank.index() == 0) {
      segment = SharedSegment::create({.size = rank.size(), .slot_bytes = slot_bytes});
      std::strncpy(ticket.data(), segment->ticket().c_str(), ticket.size() - 1);
      made = true;
    } else {
      while (!made) std::this_thread::yield();
      segment = SharedSegment::attach(rank.index(), ticket.data());
    }
    ++attached;
    while (attached < rank.size()) std::this_thread::yield();
    return segment;
  }
};

constexpr SharedSegment::Call kCall{"test", milliseconds(20'000)};

template <class T>
std::span<std::byte> bytes_of(std::vector<T>& values) {
  return std::as_writable_bytes(std::span(values));
}

/// The code and text of the error that `action` throws.
TEST(Segment, ReducesAnyLengthToTheSameSumOnAllRanks) {
  for (const int size : {1, 2, 3, 4}) {
    Meeting* meeting = Meeting::make();
    test::run_ranks(size, [&](test::Rank& rank) {
      const auto segment = meeting->join(rank, 32 * 1024);
      // Around one part, around the start of stripes, around several parts.
      for (const std::size_t count : {0, 1, 2, 1023, 4095, 4096, 4097, 8191, 8192, 8193, 24'577, 100'003}) {
        std::vector<float> values(count);
        for (std::size_t i = 0; i < count; ++i)
          values[i] = static_cast<float>(i % 1000 + 1) * (rank.index() + 1.0F);
        segment->all_reduce(kCall, bytes_of(values), Element::kFloat32, Reduction::kSum);
        const float factor = static_cast<float>(size * (size + 1)) / 2;
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < count; ++i)
          wrong += values[i] != static_cast<float>(i % 1000 + 1) * factor;
        EXPECT_EQ(wrong, 0U) << "of " << count;
      }
    });
  }
}

TEST(Segment, GivesEveryRankTheSameBits) {
  Meeting* meeting = Meeting::make();
  const auto reports = test::run_ranks(3, [&](test::Rank& rank) {
    const auto segment = meeting->join(rank);
    std::mt19937 random(static_cast<unsigned>(rank.index()));
    std::normal_distribution<float> normal(0, 1e3F);
    for (const std::size_t count : {7, 1000, 30'000}) {
      std::vector<float> values(count);
      for (float& value : values) value = normal(random);
      segment->all_reduce(kCall, bytes_of(values), Element::kFloat32, Reduction::kSum);
      const auto bytes = bytes_of(values);
      rank.report(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
    }
  });
  EXPECT_EQ(reports[0].size(), 4U * (7 + 1000 + 30'000));
  EXPECT_EQ(reports[0], reports[1]);
  EXPECT_EQ(reports[0], reports[2]);
}

TEST(Segment, BroadcastsAndGathersInParts) {
  Meeting* meeting = Meeting::make();
  test::run_ranks(3, [&](test::Rank& rank) {
    const auto segment = meeting->join(rank);
    for (const std::size_t count : {0, 1, 4096, 4097, 20'000}) {
      for (int root = 0; root < 3; ++root) {
        std::vector<std::uint8_t> values(count, static_cast<std::uint8_t>(rank.index() + 10));
        segment->broadcast(kCall, bytes_of(values), root);
        EXPECT_EQ(values, std::vector<std::uint8_t>(count, static_cast<std::uint8_t>(root + 10)));
      }
      std::vector<std::uint8_t> mine(count, static_cast<std::uint8_t>(rank.index()));
      std::vector<std::vector<std::uint8_t>> all(3, std::vector<std::uint8_t>(count, 99));
      std::vector<std::byte*> outputs;
      for (auto& one : all) outputs.push_back(reinterpret_cast<std::byte*>(one.data()));
      segment->all_gather(kCall, bytes_of(mine), outputs);
      for (int r = 0; r < 3; ++r)
        EXPECT_EQ(all[static_cast<std::size_t>(r)],
                  std::vector<std::uint8_t>(count, static_cast<std::uint8_t>(r)));
    }
  });
}

TEST(Segment, KeepsManySmallCallsApart) {
  for (const int size : {2, 4}) {  // 4 are more than this project's smallest machine has cores
    Meeting* meeting = Meeting::make();
    test::run_ranks(size, [&](test::Rank& rank) {
      const auto segment = meeting->join(rank);
      int wrong = 0;
      for (std::int64_t step = 0; step < 20'000; ++step) {
        std::vector<std::int64_t> value{step * size + rank.index(), -step};
        segment->all_reduce(kCall, bytes_of(value), Element::kInt64, Reduction::kSum);
        wrong += value[0] != step * size * size + size * (size - 1) / 2 || value[1] != -step * size;
      }
      EXPECT_EQ(wrong, 0);
    });
  }
}

TEST(Segment, ABarrierHoldsEveryoneUntilTheLastCame) {
  Meeting* meeting = Meeting::make();
  test::run_ranks(3, [&](test::Rank& rank) {
    const auto segment = meeting->join(rank);
    for (int round = 1; round <= 1000; ++round) {
      ++meeting->flag;
      segment->barrier(kCall);
      EXPECT_GE(meeting->flag.load(), 3 * round);
      EXPECT_LE(meeting->flag.load(), 3 * (round + 1));
    }
  });
}

TEST(Segment, ReportsAKilledRankWithinMoments) {
  struct Case {
    const char* where;
    std::function<void(SharedSegment&)> before_death;
  };
  std::vector<float> large(40'000);
  const std::vector<Case> cases{
      {"before any call", [](SharedSegment&) {}},
      {"after a barrier", [](SharedSegment& segment) { segment.barrier(kCall); }},
      {"after a reduction in stripes",
       [&](SharedSegment& segment) {
         segment.all_reduce(kCall, bytes_of(large), Element::kFloat32, Reduction::kSum);
       }},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.where);
    Meeting* meeting = Meeting::make();
    test::run_ranks(
        3,
        [&](test::Rank& rank) {
          const auto segment = meeting->join(rank);
          one.before_death(*segment);
          if (rank.index() == 1) ::raise(SIGKILL);
          const auto start = steady_clock::now();
          std::vector<float> values(40'000);
          const auto [code, text] = error_of(
              [&] { segment->all_reduce(kCall, bytes_of(values), Element::kFloat32, Reduction::kSum); });
          EXPECT_EQ(code, ErrorCode::kPeerLost);
          EXPECT_THAT(text, HasSubstr("[test] rank 1 ended before taking part"));
          EXPECT_LT(steady_clock::now() - start, milliseconds(5000));
          EXPECT_THAT(segment->lost(), ::testing::Contains(1));
          // Every later call fails at once, with the first cause.
          const auto [later, later_text] =
              error_of([&] { segment->barrier({"barrier", milliseconds(20'000)}); });
          EXPECT_EQ(later, ErrorCode::kPeerLost);
          EXPECT_THAT(later_text, HasSubstr("[barrier] the group failed before: [test] rank 1 ended"));
        },
        {.lost = {1}});
  }
}

TEST(Segment, ReportsARankKilledInTheMiddleOfAStream) {
  for (const int delay_us : {300, 1000, 5000, 20'000}) {
    Meeting* meeting = Meeting::make();
    test::run_ranks(3,
                    [&](test::Rank& rank) {
                      const auto segment = meeting->join(rank);
                      std::thread killer;
                      if (rank.index() == 2)
                        killer = std::thread([&] {
                          std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
                          ::raise(SIGKILL);
                        });
                      const auto [code, text] = error_of([&] {
                        std::vector<float> values(10'000, 1.0F);
                        while (true)
                          segment->all_reduce(kCall, bytes_of(values), Element::kFloat32, Reduction::kMax);
                      });
                      EXPECT_EQ(code, ErrorCode::kPeerLost);
                      EXPECT_THAT(text, HasSubstr("rank 2 ended"));
                      if (killer.joinable()) killer.join();
                    },
                    {.lost = {2}});
  }
}

TEST(Segment, ReportsARankThatLeft) {
  Meeting* meeting = Meeting::make();
  test::run_ranks(2, [&](test::Rank& rank) {
    auto segment = meeting->join(rank);
    segment->barrier(kCall);
    if (rank.index() == 0) {
      segment.reset();
      while (meeting->flag == 0) std::this_thread::yield();
      return;
    }
    const auto [code, text] = error_of([&] { segment->barrier(kCall); });
    meeting->flag = 1;
    EXPECT_EQ(code, ErrorCode::kPeerLost);
    EXPECT_THAT(text, HasSubstr("rank 0 left the group without taking part"));
  });
}

TEST(Segment, ALastCallIsWholeForARankThatComesLater) {
  Meeting* meeting = Meeting::make();
  test::run_ranks(2, [&](test::Rank& rank) {
    auto segment = meeting->join(rank);
    for (int round = 0; round < 200; ++round) segment->barrier(kCall);
    std::vector<std::int32_t> value{rank.index() + 1};
    segment->all_reduce(kCall, bytes_of(value), Element::kInt32, Reduction::kProduct);
    EXPECT_EQ(value[0], 2);
  });
}

TEST(Segment, NamesAStoppedRankInATimeout) {
  Meeting* meeting = Meeting::make();
  test::run_ranks(3,
                  [&](test::Rank& rank) {
                    const auto segment = meeting->join(rank);
                    segment->barrier(kCall);
                    if (rank.index() == 2) ::raise(SIGSTOP);
                    const auto start = steady_clock::now();
                    const auto [code, text] =
                        error_of([&] { segment->barrier({"barrier", milliseconds(400)}); });
                    EXPECT_EQ(code, ErrorCode::kTimeout);
                    EXPECT_THAT(text, HasSubstr("[barrier] rank 2 did not arrive within 400 ms"));
                    EXPECT_LT(steady_clock::now() - start, milliseconds(1200));
                    EXPECT_GT(steady_clock::now() - start, milliseconds(300));
                  },
                  {.lost = {2}});
}

TEST(Segment, RefusesDifferentCalls) {
  using Act = std::function<void(SharedSegment&, int)>;
  std::vector<float> floats(8);
  std::vector<float> more_floats(10);
  const auto reduce = [](SharedSegment& segment, std::span<std::byte> data, Element element,
                         Reduction reduction) { segment.all_reduce(kCall, data, element, reduction); };
  const std::vector<std::pair<const char*, Act>> cases{
      {"all_reduce (sum) of 10 float32",
       [&](SharedSegment& s, int rank) {
         reduce(s, bytes_of(rank == 1 ? more_floats : floats), Element::kFloat32, Reduction::kSum);
       }},
      {"all_reduce (sum) of 8 int32",
       [&](SharedSegment& s, int rank) {
         reduce(s, bytes_of(floats), rank == 1 ? Element::kInt32 : Element::kFloat32, Reduction::kSum);
       }},
      {"all_reduce (max) of 8 float32",
       [&](SharedSegment& s, int rank) {
         reduce(s, bytes_of(floats), Element::kFloat32, rank == 1 ? Reduction::kMax : Reduction::kSum);
       }},
      {"broadcast of 32 bytes from rank 1",
       [&](SharedSegment& s, int rank) { s.broadcast(kCall, bytes_of(floats), rank == 1 ? 1 : 0); }},
      {"rank 1 other: barrier",
       [&](SharedSegment& s, int rank) {
         if (rank == 1)
           s.barrier({"other", milliseconds(20'000)});
         else
           s.broadcast(kCall, bytes_of(floats), 0);
       }},
  };
  for (const auto& [expected, act] : cases) {
    SCOPED_TRACE(expected);
    Meeting* meeting = Meeting::make();
    test::run_ranks(3, [&](test::Rank& rank) {
      const auto segment = meeting->join(rank);
      const auto [code, text] = error_of([&] { act(*segment, rank.index()); });
      EXPECT_EQ(code, ErrorCode::kMismatch);
      EXPECT_THAT(text, HasSubstr(expected));
      EXPECT_THAT(text, HasSubstr("rank 0"));
      EXPECT_THAT(text, HasSubstr("rank 2"));
    });
  }
}

TEST(Segment, LeavesNothingInTheFileSystem) {
  const auto segment = SharedSegment::create({.size = 2, .slot_bytes = 4096});
  const std::string ticket = segment->ticket();
  const std::string path = ticket.substr(0, ticket.find(' '));
  std::array<char, 256> target{};
  ASSERT_GT(::readlink(path.c_str(), target.data(), target.size() - 1), 0);
  EXPECT_THAT(target.data(), HasSubstr("(deleted)"));
}

TEST(Segment, AnErrorSaysThatTheSystemHasNoMemoryForIt) {
  test::run_ranks(1, [](test::Rank&) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{4096, 4096};  // as a system without memory would, this refuses the file
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
    const auto [code, text] = error_of([&] { SharedSegment::create({.size = 2, .slot_bytes = 1 << 20}); });
    EXPECT_EQ(code, ErrorCode::kSystem);
    EXPECT_THAT(text, HasSubstr("bytes of shared memory"));
  });
  const SharedSegment::Settings huge{.size = 2, .slot_bytes = std::size_t{1} << 40};
  EXPECT_EQ(error_of([&] { SharedSegment::create(huge); }).first, ErrorCode::kSystem);
}

TEST(Segment, RefusesATicketOfSomethingElse) {
  const auto segment = SharedSegment::create({.size = 2, .slot_bytes = 4096});
  const std::string ticket = segment->ticket();
  const std::string path = ticket.substr(0, ticket.find(' '));
  for (const std::string& wrong :
       {std::string(), std::string("nonsense"), path + " 1", std::string("/proc/self/exe 5"),
        std::string("/dev/null 5"), std::string("/proc/1/fd/9999 5")})
    EXPECT_EQ(error_of([&] { SharedSegment::attach(1, wrong); }).first, ErrorCode::kUnavailable) << wrong;
  EXPECT_EQ(error_of([&] { SharedSegment::attach(2, ticket); }).first, ErrorCode::kInvalidArgument);
}

// ---- the arithmetic ----

template <class T>
std::vector<T> reduced(Element element, Reduction reduction, const std::vector<std::vector<T>>& inputs) {
  std::vector<T> out(inputs[0].size());
  std::vector<const std::byte*> pointers;
  for (const auto& input : inputs) pointers.push_back(reinterpret_cast<const std::byte*>(input.data()));
  comm::reduce(element, reduction, reinterpret_cast<std::byte*>(out.data()), pointers.data(),
               static_cast<int>(pointers.size()), out.size());
  return out;
}

TEST(Reduce, HasTheFiveReductions) {
  const std::vector<std::vector<double>> inputs{{1, -2, 8}, {4, 5, -1}, {4, 0, 2}};
  const auto of = [&](Reduction reduction) { return reduced(Element::kFloat64, reduction, inputs); };
  EXPECT_EQ(of(Reduction::kSum), (std::vector<double>{9, 3, 9}));
  EXPECT_EQ(of(Reduction::kMean), (std::vector<double>{3, 1, 3}));
  EXPECT_EQ(of(Reduction::kMax), (std::vector<double>{4, 5, 8}));
  EXPECT_EQ(of(Reduction::kMin), (std::vector<double>{1, -2, -1}));
  EXPECT_EQ(of(Reduction::kProduct), (std::vector<double>{16, -0.0, -16}));
}

TEST(Reduce, PassesOnANaNFromAnyRank) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Reduction reduction :
       {Reduction::kSum, Reduction::kMean, Reduction::kMax, Reduction::kMin, Reduction::kProduct}) {
    EXPECT_TRUE(std::isnan(reduced<float>(Element::kFloat32, reduction, {{nan}, {1}, {2}})[0]));
    EXPECT_TRUE(std::isnan(reduced<float>(Element::kFloat32, reduction, {{1}, {nan}, {2}})[0]));
    EXPECT_TRUE(std::isnan(reduced<float>(Element::kFloat32, reduction, {{1}, {2}, {nan}})[0]));
  }
}

TEST(Reduce, WrapsIntegersAround) {
  EXPECT_EQ(reduced<std::uint8_t>(Element::kUInt8, Reduction::kSum, {{200}, {100}})[0], 44);
  EXPECT_EQ(reduced<std::int8_t>(Element::kInt8, Reduction::kSum, {{127}, {1}})[0], -128);
  EXPECT_EQ(reduced<std::int16_t>(Element::kInt16, Reduction::kProduct, {{-300}, {300}})[0],
            static_cast<std::int16_t>(-90'000));
  EXPECT_EQ(reduced<std::int64_t>(Element::kInt64, Reduction::kSum, {{INT64_MAX}, {1}})[0], INT64_MIN);
}

TEST(Reduce, RoundsShortFloatsOnce) {
  // 1 + 2^-8 + 2^-8: rounded after each step it would stay 1, since bfloat16 has 8 bits of mantissa.
  const std::uint16_t one = 0x3f80;
  const std::uint16_t step = 0x3b80;
  EXPECT_EQ(reduced<std::uint16_t>(Element::kBFloat16, Reduction::kSum, {{one}, {step}, {step}})[0], 0x3f81);
  // 1024 + 0.5 + 0.5 in float16.
  EXPECT_EQ(reduced<std::uint16_t>(Element::kFloat16, Reduction::kSum, {{0x6400}, {0x3800}, {0x3800}})[0],
            0x6401);
}

TEST(Reduce, TakesTruthValues) {
  const std::vector<std::vector<std::uint8_t>> inputs{{0, 1, 1}, {0, 0, 1}};
  EXPECT_EQ(reduced(Element::kBool, Reduction::kSum, inputs), (std::vector<std::uint8_t>{0, 1, 1}));
  EXPECT_EQ(reduced(Element::kBool, Reduction::kMax, inputs), (std::vector<std::uint8_t>{0, 1, 1}));
  EXPECT_EQ(reduced(Element::kBool, Reduction::kMin, inputs), (std::vector<std::uint8_t>{0, 0, 1}));
  EXPECT_EQ(reduced(Element::kBool, Reduction::kProduct, inputs), (std::vector<std::uint8_t>{0, 0, 1}));
}

}  // namespace
}  // namespace hasten

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <new>
#include <vector>

#include <ATen/ops/empty.h>

#include <hasten/memory/batch_size.h>

#include "comm/join.h"
#include "support/errors.h"

#if defined(__SANITIZE_ADDRESS__)
/// An allocation that cannot be is to fail as it does without the sanitizer, instead of ending the program.
extern "C" const char* __asan_default_options() {  // NOLINT: the sanitizer's name
  return "allocator_may_return_null=1";
}
#endif

namespace hasten {
namespace {

using memory::find_executable_batch_size;
using test::message_of;
using testing::ElementsAre;
using testing::HasSubstr;

/// The sizes that are tried until one is at most `fits`.
std::vector<std::int64_t> tried(const memory::BatchSizeOptions& options, std::int64_t fits) {
  std::vector<std::int64_t> sizes;
  const std::int64_t found = find_executable_batch_size(options, [&](std::int64_t size) {
    sizes.push_back(size);
    if (size > fits) throw std::bad_alloc();
    return size;
  });
  EXPECT_EQ(found, sizes.back());
  return sizes;
}

TEST(BatchSize, ShrinksToNineTenthsOrHalves) {
  EXPECT_THAT(tried({.starting_batch_size = 100}, 70), ElementsAre(100, 90, 81, 72, 64));
  EXPECT_THAT(tried({.starting_batch_size = 100, .halve = true}, 30), ElementsAre(100, 50, 25));
  EXPECT_THAT(tried({.starting_batch_size = 8}, 8), ElementsAre(8));
  // In whole numbers, down to 1.
  EXPECT_THAT(tried({.starting_batch_size = 3}, 1), ElementsAre(3, 2, 1));
}

TEST(BatchSize, KnowsLibTorchsOwnWayToSayIt) {
  int calls = 0;
  find_executable_batch_size({.starting_batch_size = 2, .halve = true}, [&](std::int64_t size) {
    ++calls;
    if (size == 2) (void)at::empty({std::int64_t{1} << 55});
  });
  EXPECT_EQ(calls, 2);
}

TEST(BatchSize, LetsOtherErrorsPassAtOnce) {
  int calls = 0;
  EXPECT_THROW(find_executable_batch_size({},
                                          [&](std::int64_t) {
                                            ++calls;
                                            throw std::runtime_error("another fault");
                                          }),
               std::runtime_error);
  EXPECT_EQ(calls, 1);
}

TEST(BatchSize, SaysWhenNoneIsLeft) {
  EXPECT_THAT(message_of([] { (void)tried({.starting_batch_size = 3}, 0); }, ErrorCode::kUnavailable),
              HasSubstr("from 3 down to 1"));
  EXPECT_THAT(message_of([] { (void)tried({.starting_batch_size = 0}, 0); }, ErrorCode::kInvalidArgument),
              HasSubstr("starting_batch_size is 0"));
}

TEST(BatchSize, IsOneForAllRanks) {
  test::run_ranks(2, [](test::Rank& rank) {
    const auto group = test::join(rank);
    // Rank 1 has less memory; rank 0 tries again, too.
    EXPECT_THAT(
        tried({.starting_batch_size = 16, .halve = true, .group = group.get()}, rank.index() == 0 ? 16 : 5),
        ElementsAre(16, 8, 4));
  });
}

}  // namespace
}  // namespace hasten

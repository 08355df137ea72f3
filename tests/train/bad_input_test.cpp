#include <csignal>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <hasten/base/error.h>
#include <hasten/checkpoint/folder.h>

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
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(BadInput, OfAWrongShapeIsNamedWithWhatWasGiven) {
  run_ranks(1, [](Rank& rank) {
    test::join(rank);
    Accelerator accelerator({.progress = false});
    Mlp net(8, 16, 3);
    auto model = accelerator.prepare(net);
    EXPECT_THAT(message_of([&] { (void)model(at::ones({4, 9})); }, ErrorCode::kMismatch),
                AllOf(HasSubstr("4x9 and 8x16"), HasSubstr("Float [4, 9] on cpu"),
                      HasSubstr("accelerator.device()"), Not(HasSubstr("frame #"))));
    EXPECT_THAT(message_of([&] { (void)model(at::ones({4, 8}, at::kLong)); }, ErrorCode::kMismatch),
                HasSubstr("Long [4, 8] on cpu"));
    EXPECT_THAT(message_of([&] { (void)model(at::Tensor()); }, ErrorCode::kMismatch),
                HasSubstr("an undefined tensor"));
    // The model works on.
    EXPECT_EQ(model(at::ones({4, 8})).sizes(), (std::vector<std::int64_t>{4, 3}));
  });
}

TEST(BadInput, OnAnotherDeviceIsNamedWithBoth) {
  run_ranks(1, [](Rank& rank) {
    test::join(rank);
    Accelerator accelerator({.progress = false});
    Mlp net(8, 16, 3);
    auto model = accelerator.prepare(net);
    const at::Tensor elsewhere = at::ones({4, 8}, at::device(at::kMeta));
    EXPECT_THAT(message_of([&] { (void)model(elsewhere); }, ErrorCode::kMismatch),
                AllOf(HasSubstr("The model is on cpu"), HasSubstr("Float [4, 8] on meta")));
    const at::Tensor loss = at::ones({}, at::device(at::kMeta)).requires_grad_();
    EXPECT_THAT(message_of([&] { accelerator.backward(loss); }),
                AllOf(HasSubstr("the loss is on meta"), HasSubstr("computes on cpu")));
  });
}

TEST(BadInput, APlaceThatIsNoFolderLeavesTheRunAsItWas) {
  const TemporaryFolder folder;
  std::ofstream(folder / "file") << "mine";
  run_ranks(2, [&](Rank& rank) {
    test::join(rank);
    Accelerator accelerator({.project = {.dir = folder / "file"}, .progress = false});
    Mlp net(8, 16, 3);
    auto model = accelerator.prepare(net);
    EXPECT_THAT(message_of([&] { accelerator.save_state(); }), HasSubstr((folder / "file").string()));
    EXPECT_THAT(message_of([&] { accelerator.save_model(model, folder / "file"); }),
                HasSubstr((folder / "file").string()));
    // Both ranks know, and go on together.
    accelerator.wait_for_everyone();
    accelerator.save_state(folder / "elsewhere");
  });
  std::ifstream file(folder / "file");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), "mine");
}

// As when the disk is full, writing fails in the middle of a file.
TEST(BadInput, ADiskThatIsFullLeavesTheCheckpointBefore) {
  const TemporaryFolder folder;
  run_ranks(2, [&](Rank& rank) {
    test::join(rank);
    Accelerator accelerator({.project = {.dir = folder.path(), .total_limit = 1}, .progress = false});
    Mlp net(256, 256, 3);
    auto model = accelerator.prepare(net);
    accelerator.save_state();
    std::signal(SIGXFSZ, SIG_IGN);
    rlimit unlimited{};
    getrlimit(RLIMIT_FSIZE, &unlimited);
    rlimit small = unlimited;
    small.rlim_cur = 64 << 10;
    if (rank.index() == 0) setrlimit(RLIMIT_FSIZE, &small);
    EXPECT_THAT(message_of([&] { accelerator.save_state(); }),
                AllOf(HasSubstr("model.safetensors"), HasSubstr("File too large")));
    EXPECT_EQ(checkpoint::numbers(folder / "checkpoints"), (std::vector<std::int64_t>{0}));
    setrlimit(RLIMIT_FSIZE, &unlimited);
    accelerator.wait_for_everyone();
    accelerator.load_state();
    accelerator.save_state();
  });
  // What the failed writing left is gone, and the limit of one holds.
  std::vector<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "checkpoints"))
    left.push_back(entry.path().filename());
  EXPECT_EQ(left, (std::vector<std::string>{"checkpoint_1"}));
}

TEST(BadInput, OfOneRankEndsAllWithItsReason) {
  run_ranks(2, [](Rank& rank) {
    test::join(rank);
    Accelerator accelerator({.progress = false, .timeout = std::chrono::seconds(5)});
    Mlp net(8, 16, 3);
    auto model = accelerator.prepare(net);
    if (rank.index() == 0) {
      EXPECT_THAT(message_of([&] { (void)model(at::ones({4, 9})); }), HasSubstr("4x9"));
      return;  // as a program does whose main caught it
    }
    EXPECT_THAT(message_of([&] { accelerator.backward(model(at::ones({4, 8})).sum()); }),
                testing::ContainsRegex("rank 0"));
  });
}

}  // namespace
}  // namespace hasten

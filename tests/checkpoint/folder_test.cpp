#include <csignal>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <hasten/base/error.h>
#include <hasten/base/files.h>
#include <hasten/checkpoint/folder.h>
#include <hasten/checkpoint/tensors.h>
#include <hasten/comm/group.h>

#include "support/errors.h"
#include "support/ranks.h"
#include "support/temporary_folder.h"

namespace hasten {
namespace {

using test::message_of;

using test::Rank;
using test::run_ranks;
using test::TemporaryFolder;
using testing::HasSubstr;

void save(comm::Group& group, const std::filesystem::path& folder) {
  checkpoint::Writer writer(group, folder);
  const std::string name = "part_" + std::to_string(group.rank());
  writer.write(
      name, [&](const std::filesystem::path& path) { files::write_atomically(path, "content of " + name); });
  writer.commit();
}

void save_alone(const std::filesystem::path& folder) {
  const auto group = comm::Group::solo(at::kCPU);
  save(*group, folder);
}

TEST(CheckpointFolder, HoldsTheFilesOfAllRanks) {
  const TemporaryFolder folder;
  run_ranks(2, [&](Rank& rank) {
    const auto group = comm::Group::connect(rank.process(), at::kCPU);
    save(*group, folder / "deep" / "checkpoint_0");
    const checkpoint::Reader reader(folder / "deep" / "checkpoint_0");
    EXPECT_EQ(files::read(reader.path("part_0")), "content of part_0");
    EXPECT_EQ(files::read(reader.path("part_1")), "content of part_1");
    EXPECT_THAT(message_of([&] { (void)reader.path("part_2"); }), HasSubstr("part_2"));
    group->barrier();
  });
}

TEST(CheckpointFolder, LeavesNothingWhenARankFails) {
  const TemporaryFolder folder;
  run_ranks(2, [&](Rank& rank) {
    const auto group = comm::Group::connect(rank.process(), at::kCPU);
    {
      checkpoint::Writer writer(*group, folder / "checkpoint_0");
      writer.write("part_" + std::to_string(rank.index()), [&](const std::filesystem::path& path) {
        files::write_atomically(path, "begun");
        if (rank.index() == 1) throw std::runtime_error("the disk is full");
      });
      EXPECT_THAT(message_of([&] { writer.commit(); }),
                  testing::AllOf(HasSubstr("rank 1"), HasSubstr("part_1"), HasSubstr("the disk is full")));
    }
    group->barrier();
    EXPECT_EQ(folder.entries(), 0U);
    group->barrier();
  });
}

TEST(CheckpointFolder, IsInvisibleWhenItsWritingIsKilled) {
  const TemporaryFolder folder;
  run_ranks(1, [&](Rank&) { save_alone(folder / "checkpoint_0"); });
  run_ranks(1,
            [&](Rank&) {
              const auto group = comm::Group::solo(at::kCPU);
              checkpoint::Writer writer(*group, folder / "checkpoint_1");
              writer.write("first",
                           [](const std::filesystem::path& path) { files::write_atomically(path, "x"); });
              writer.write("second", [](const std::filesystem::path&) { ::raise(SIGKILL); });
            },
            {.lost = {0}});
  run_ranks(1, [&](Rank&) {
    const auto newest = checkpoint::newest(folder.path());
    ASSERT_TRUE(newest.has_value());
    EXPECT_EQ(newest->folder().filename(), "checkpoint_0");
    EXPECT_EQ(checkpoint::numbers(folder.path()), (std::vector<std::int64_t>{0}));
    save_alone(checkpoint::next_folder(folder.path()));
    EXPECT_EQ(checkpoint::numbers(folder.path()), (std::vector<std::int64_t>{0, 1}));
    EXPECT_EQ(folder.entries(), 2U) << "the leftovers are gone";
  });
}

TEST(CheckpointFolder, IsPassedOverWhenDamaged) {
  const TemporaryFolder folder;
  const auto file = folder / "checkpoint_1" / "part_0";
  struct Damage {
    std::function<void()> act;
    std::string named;
  };
  for (const Damage& damage :
       {Damage{[&] { std::filesystem::remove(file); }, "missing"},
        Damage{[&] { std::filesystem::resize_file(file, 3); }, "3 bytes"},
        Damage{[&] { std::ofstream(file) << "content of part_X"; }, "altered"},
        Damage{[&] { std::filesystem::remove(folder / "checkpoint_1" / "manifest.json"); }, "manifest"},
        Damage{[&] { std::ofstream(folder / "checkpoint_1" / "manifest.json") << "{"; }, "no JSON"},
        Damage{[&] { std::ofstream(folder / "checkpoint_1" / "manifest.json") << "[]"; }, "manifest"}}) {
    std::filesystem::remove_all(folder / "checkpoint_0");
    std::filesystem::remove_all(folder / "checkpoint_1");
    save_alone(folder / "checkpoint_0");
    save_alone(folder / "checkpoint_1");
    damage.act();
    EXPECT_THAT(message_of([&] { checkpoint::Reader{folder / "checkpoint_1"}; }), HasSubstr(damage.named));
    const auto newest = checkpoint::newest(folder.path());
    ASSERT_TRUE(newest.has_value());
    EXPECT_EQ(newest->folder().filename(), "checkpoint_0");
  }
}

TEST(CheckpointFolder, RefusesAVersionItDoesNotKnow) {
  const TemporaryFolder folder;
  save_alone(folder / "checkpoint_0");
  auto manifest = files::read(folder / "checkpoint_0" / "manifest.json");
  manifest.replace(manifest.find("\"version\": 1"), 12, "\"version\": 9");
  files::write_atomically(folder / "checkpoint_0" / "manifest.json", manifest);
  EXPECT_THAT(message_of([&] { checkpoint::Reader{folder / "checkpoint_0"}; }), HasSubstr("version 9"));
}

TEST(CheckpointFolder, KeepsTheNewest) {
  const TemporaryFolder folder;
  for (int i = 0; i < 12; ++i) save_alone(checkpoint::next_folder(folder.path()));
  checkpoint::keep_newest(folder.path(), 3);
  EXPECT_EQ(checkpoint::numbers(folder.path()), (std::vector<std::int64_t>{9, 10, 11}));
  EXPECT_EQ(folder.entries(), 3U);
  EXPECT_FALSE(checkpoint::newest(folder.path(), 11).has_value()) << "none after number 11";
}

TEST(CheckpointFolder, RefusesAPlaceThatIsTaken) {
  const TemporaryFolder folder;
  save_alone(folder / "mine");
  EXPECT_THAT(message_of([&] { save_alone(folder / "mine"); }), HasSubstr("exists already"));
}

TEST(Tensors, ComeBackAsTheyWere) {
  const TemporaryFolder folder;
  const params::NamedTensors tensors{{"bf16", at::arange(6).to(at::kBFloat16).reshape({2, 3})},
                                     {"bool", at::arange(4) % 2 == 0},
                                     {"empty", at::zeros({0, 3})},
                                     {"scalar", at::ones({}, at::kDouble)},
                                     {"transposed", at::arange(6).reshape({2, 3}).t()},
                                     {"half", at::ones({3}, at::kHalf)}};
  checkpoint::write_tensors(folder / "t.safetensors", tensors);
  auto read = checkpoint::read_tensors(folder / "t.safetensors");
  std::filesystem::remove(folder / "t.safetensors");
  ASSERT_EQ(read.size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    const auto same = [&name = name](const auto& item) { return item.first == name; };
    const auto found = std::find_if(read.begin(), read.end(), same);
    ASSERT_NE(found, read.end()) << name;
    EXPECT_EQ(found->second.scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(found->second.equal(tensor)) << name;
  }
}

TEST(Tensors, StoreATiedParameterOnce) {
  const TemporaryFolder folder;
  const at::Tensor shared = at::ones({4, 2}).set_requires_grad(true);
  const params::ParameterSet model({{"embedding.weight", shared}, {"head.weight", shared}}, {});
  checkpoint::write_model(folder / "m.safetensors", model);
  EXPECT_EQ(checkpoint::read_tensors(folder / "m.safetensors").size(), 1U);
  {
    const at::NoGradGuard no_grad;
    shared.zero_();
  }
  checkpoint::read_model(folder / "m.safetensors", model);
  EXPECT_EQ(shared.sum().item<double>(), 8);
}

}  // namespace
}  // namespace hasten

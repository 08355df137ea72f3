#include <csignal>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <memory>
#include <sys/resource.h>
#include <unistd.h>

#include <hasten/base/error.h>
#include <hasten/base/files.h>
#include <hasten/formats/event_file.h>

#include "formats/record.h"
#include "support/temporary_folder.h"

namespace hasten {
namespace {

using formats::EventWriter;
using test::TemporaryFolder;
using testing::HasSubstr;

std::string hex(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) {
    text += "0123456789abcdef"[static_cast<unsigned char>(byte) >> 4];
    text += "0123456789abcdef"[static_cast<unsigned char>(byte) & 15];
  }
  return text;
}

TEST(EventFile, FramesARecord) {
  std::string record;
  formats::append_record(record, "abc");
  EXPECT_EQ(hex(record), "0300000000000000b099490e6162636e57f121");
}

TEST(EventFile, EqualsThePublishedBytes) {
  const TemporaryFolder folder;
  EventWriter writer(folder.path(), 1.0);
  writer.scalar("loss", 0.25, 7, 1.0);
  writer.flush();
  EXPECT_EQ(hex(files::read(writer.path())),
            "1800000000000000a37f4b2209000000000000f03f1a0d627261696e2e4576656e743a3286bf577a"
            "1a00000000000000129bd82d09000000000000f03f10072a0d0a0b0a046c6f7373150000803ed63d6621");
}

TEST(EventFile, EqualsWhatTensorBoardsOwnWriterMakes) {
  const TemporaryFolder folder;
  EventWriter writer(folder.path(), 1.5);
  writer.scalar("loss", 0.25, 0, 1.75);
  writer.scalar("loss", 0.0, 300, 2.0);
  writer.scalar("lr/gruppe é", std::numeric_limits<double>::quiet_NaN(), std::int64_t{1} << 40, 2.5);
  writer.scalar(std::string(200, 'x'), -std::numeric_limits<double>::infinity(), -1, 3.0);
  writer.text("config", "| a | b |\n", 4, 3.5);
  writer.text("config", "", 5, 4.0);
  writer.flush();
  EXPECT_EQ(hex(files::read(writer.path())),
            hex(files::read(std::filesystem::path(HASTEN_GOLDEN_DIR) / "formats" / "events.tfevents")));
}

TEST(EventFile, HasANameOfItsOwnThatTensorBoardLooksFor) {
  const TemporaryFolder folder;
  const EventWriter first(folder / "new" / "deep", 1'700'000'000.9);
  const EventWriter second(folder / "new" / "deep", 1'700'000'000.9);
  EXPECT_NE(first.path(), second.path());
  EXPECT_THAT(first.path().filename().string(), testing::StartsWith("events.out.tfevents.1700000000."));
  EXPECT_THAT(first.path().filename().string(), HasSubstr(concat('.', ::getpid(), '.')));
}

TEST(EventFile, ShowsEventsInTimeWithoutAFlush) {
  const TemporaryFolder folder;
  EventWriter writer(folder.path(), 100.0);
  writer.scalar("loss", 1, 1, 105.0);
  EXPECT_EQ(files::read(writer.path()), "");
  writer.scalar("loss", 1, 2, 110.0);  // ten seconds have passed
  const std::size_t size = files::read(writer.path()).size();
  EXPECT_EQ(size, 40U + 42U + 42U);
  writer.text("config", std::string(64 * 1024, 'x'), 3, 110.0);  // much has gathered
  EXPECT_GT(files::read(writer.path()).size(), size + 64 * 1024);
}

TEST(EventFile, WritesTheRestWhenItIsDestroyed) {
  const TemporaryFolder folder;
  auto writer = std::make_unique<EventWriter>(folder.path(), 1.0);
  const std::filesystem::path path = writer->path();
  writer->scalar("loss", 0.25, 7, 1.0);
  writer.reset();
  EXPECT_EQ(files::read(path).size(), 82U);
}

TEST(EventFile, GoesOnWhereItStoppedOnceTheDiskHasRoomAgain) {
  const TemporaryFolder folder;
  EventWriter writer(folder.path(), 1.0);
  writer.scalar("loss", 0.25, 7, 1.0);
  // A limit on the size of files stands in for a full disk.
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{.rlim_cur = 50, .rlim_max = before.rlim_max};
  auto* handler = std::signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  EXPECT_THROW(writer.flush(), Error);
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  writer.flush();
  EXPECT_EQ(files::read(writer.path()).size(), 82U);
  EXPECT_THAT(hex(files::read(writer.path())), testing::EndsWith("046c6f7373150000803ed63d6621"));
}

TEST(EventFile, NamesTheFolderThatCannotBeMade) {
  const TemporaryFolder folder;
  files::write_atomically(folder / "file", "x");
  try {
    const EventWriter writer(folder / "file" / "runs", 1.0);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kSystem);
    EXPECT_THAT(error.what(), HasSubstr((folder / "file" / "runs").string()));
  }
}

}  // namespace
}  // namespace hasten

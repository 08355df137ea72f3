#include <csignal>
#include <cstdlib>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <hasten/base/crc.h>
#include <hasten/base/environment.h>
#include <hasten/base/error.h>
#include <hasten/base/files.h>

#include "support/temporary_folder.h"

namespace hasten {
namespace {

using test::TemporaryFolder;

TEST(Files, WritesAFileAndReadsItBack) {
  const TemporaryFolder folder;
  files::write_atomically(folder / "a.txt", "one");
  files::write_atomically(folder / "a.txt", "two");
  EXPECT_EQ(files::read(folder / "a.txt"), "two");
  EXPECT_EQ(folder.entries(), 1U);
}

TEST(Files, LeavesNothingWhenAnAtomicFileIsAbandoned) {
  const TemporaryFolder folder;
  {
    files::AtomicFile file(folder / "a.txt");
    file.write("half");
  }
  EXPECT_EQ(folder.entries(), 0U);
}

TEST(Files, KeepsTheOldContentWhenTheNewCannotBeWritten) {
  const TemporaryFolder folder;
  files::write_atomically(folder / "a.txt", "old");
  // A limit on the size of files stands in for a full disk.
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{.rlim_cur = 10, .rlim_max = before.rlim_max};
  auto* handler = std::signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  EXPECT_THROW(files::write_atomically(folder / "a.txt", std::string(1000, 'x')), Error);
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(files::read(folder / "a.txt"), "old");
  EXPECT_EQ(folder.entries(), 1U);
}

TEST(Files, NamesTheFileThatIsMissing) {
  try {
    (void)files::read("/no/such/file");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNotFound);
    EXPECT_NE(std::string(error.what()).find("/no/such/file"), std::string::npos);
  }
}

TEST(Files, KeepsAMapAfterTheFileIsRemoved) {
  const TemporaryFolder folder;
  files::write_atomically(folder / "a.bin", "abc");
  const auto map = files::Map::open(folder / "a.bin");
  std::filesystem::remove(folder / "a.bin");
  ASSERT_EQ(map->bytes().size(), 3U);
  EXPECT_EQ(std::to_integer<char>(map->bytes()[2]), 'c');
}

// The check value of CRC-32C for "123456789", and RFC 3720's for 32 bytes of zeros.
TEST(Crc, EqualsThePublishedValues) {
  const std::string digits = "123456789";
  EXPECT_EQ(crc32c(std::as_bytes(std::span(digits))), 0xE3069283U);
  const std::array<std::byte, 32> zeros{};
  EXPECT_EQ(crc32c(zeros), 0x8A9136AAU);
  const auto bytes = std::as_bytes(std::span(digits));
  EXPECT_EQ(crc32c(bytes.subspan(4), crc32c(bytes.first(4))), 0xE3069283U);
}

TEST(Environment, RefusesANumberThatIsNone) {
  setenv("HASTEN_TEST_NUMBER", "12x", 1);
  EXPECT_THROW((void)environment::get_integer("HASTEN_TEST_NUMBER", 0, 100), Error);
  setenv("HASTEN_TEST_NUMBER", "101", 1);
  EXPECT_THROW((void)environment::get_integer("HASTEN_TEST_NUMBER", 0, 100), Error);
  setenv("HASTEN_TEST_NUMBER", "100", 1);
  EXPECT_EQ(environment::get_integer("HASTEN_TEST_NUMBER", 0, 100), 100);
  unsetenv("HASTEN_TEST_NUMBER");
  EXPECT_EQ(environment::get_integer("HASTEN_TEST_NUMBER", 0, 100), std::nullopt);
}

TEST(Environment, ReadsFlagsInAnyCase) {
  setenv("HASTEN_TEST_FLAG", "Yes", 1);
  EXPECT_EQ(environment::get_flag("HASTEN_TEST_FLAG"), true);
  setenv("HASTEN_TEST_FLAG", "maybe", 1);
  EXPECT_THROW((void)environment::get_flag("HASTEN_TEST_FLAG"), Error);
  unsetenv("HASTEN_TEST_FLAG");
}

}  // namespace
}  // namespace hasten

#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <span>

#include <hasten/base/error.h>
#include <hasten/base/files.h>
#include <hasten/formats/idx.h>

#include "formats/bytes.h"
#include "formats/mutations.h"
#include "support/temporary_folder.h"

namespace hasten {
namespace {

using formats::as_bytes;
using formats::DType;
using formats::IdxArray;
using testing::ElementsAre;
using testing::HasSubstr;

std::filesystem::path golden(const char* name) {
  return std::filesystem::path(HASTEN_GOLDEN_DIR) / "formats" / name;
}

template <class Number>
std::vector<Number> values(const IdxArray& array) {
  std::vector<Number> out(array.bytes.size() / sizeof(Number));
  std::copy(array.bytes.begin(), array.bytes.end(), std::as_writable_bytes(std::span(out)).begin());
  return out;
}

/// The message with which a file is refused, or "" if it is not.
std::string refusal(const std::string& file) {
  try {
    (void)formats::parse_idx(as_bytes(file), "x.idx");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCorruptData) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("x.idx"));
    return error.what();
  }
  return "";
}

template <std::size_t size>
std::string text(const char (&bytes)[size]) {
  return {bytes, size - 1};
}

TEST(Idx, ReadsPlainAndCompressedFilesAlike) {
  for (const char* name : {"u8.idx", "u8_packed.idx"}) {
    const IdxArray array = formats::read_idx(golden(name));
    EXPECT_EQ(array.dtype, DType::kU8);
    EXPECT_THAT(array.shape, ElementsAre(2, 3, 4));
    const auto bytes = values<std::uint8_t>(array);
    ASSERT_EQ(bytes.size(), 24U);
    for (std::size_t i = 0; i < bytes.size(); ++i) EXPECT_EQ(bytes[i], i);
  }
  for (const char* name : {"f32.idx", "f32_packed.idx"}) {
    const IdxArray array = formats::read_idx(golden(name));
    EXPECT_THAT(array.shape, ElementsAre(2, 2));
    EXPECT_THAT(values<float>(array), ElementsAre(1.0F, -2.5F, 0.0F, 3e30F));
  }
}

TEST(Idx, TurnsEveryTypeIntoThisMachinesOrder) {
  const auto read = [](const std::string& file) { return formats::parse_idx(as_bytes(file), "x"); };
  const std::string one = text("\0\0\0\1");
  EXPECT_THAT(values<std::uint8_t>(formats::parse_idx(as_bytes(text("\0\0\x08\0\xff")), "x")).size(), 1U);
  EXPECT_THAT(values<std::int16_t>(read(text("\0\0\x0b\1") + one + text("\xff\xfe"))), ElementsAre(-2));
  EXPECT_THAT(values<std::int32_t>(read(text("\0\0\x0c\1") + one + text("\1\2\3\4"))),
              ElementsAre(0x01020304));
  EXPECT_THAT(values<double>(read(text("\0\0\x0e\1") + one + text("\x3f\xf8\0\0\0\0\0\0"))),
              ElementsAre(1.5));
  const std::string bytes = text("\0\0\x09\1") + one + text("\xff");
  EXPECT_THAT(values<std::int8_t>(read(bytes)), ElementsAre(-1));
}

TEST(Idx, KeepsTheElementsAliveByTheOwner) {
  IdxArray array = formats::read_idx(golden("u8.idx"));
  const IdxArray copy = array;
  array = {};
  EXPECT_EQ(values<std::uint8_t>(copy)[23], 23);
}

TEST(Idx, ReadsAnEmptyArray) {
  const std::string file = text("\0\0\x0d\2\0\0\0\0\0\0\0\3");
  const IdxArray array = formats::parse_idx(as_bytes(file), "x");
  EXPECT_THAT(array.shape, ElementsAre(0, 3));
  EXPECT_TRUE(array.bytes.empty());
}

TEST(Idx, RefusesAFileThatIsCutOrTooLong) {
  for (const char* name : {"u8.idx", "f32.idx", "u8_packed.idx", "f32_packed.idx"}) {
    const std::string whole = files::read(golden(name));
    for (std::size_t size = 0; size < whole.size(); ++size)
      EXPECT_NE(refusal(whole.substr(0, size)), "") << size;
    EXPECT_NE(refusal(whole + "x"), "");
  }
  const std::string plain = files::read(golden("u8.idx"));
  EXPECT_THAT(refusal(plain.substr(0, plain.size() - 1)), HasSubstr("takes 24 bytes, but 23 follow"));
  EXPECT_THAT(refusal(plain + "x"), HasSubstr("takes 24 bytes, but 25 follow"));
}

TEST(Idx, RefusesSizesThatOverflow) {
  const std::string most = text("\xff\xff\xff\xff");
  EXPECT_THAT(refusal(text("\0\0\x08\3") + most + most + most), HasSubstr("too large"));
  EXPECT_THAT(refusal(text("\0\0\x0e\2") + most + most), HasSubstr("too large"));
  EXPECT_THAT(refusal(text("\0\0\x08\1") + most + "abc"), HasSubstr("takes 4294967295 bytes, but 3"));
  EXPECT_THAT(refusal(text("\0\0\x08\xff") + most), HasSubstr("255 dimensions"));
  EXPECT_THAT(refusal(text("\0\0\x08\3\0\0\0\0") + most + most), HasSubstr("too large"));
}

TEST(Idx, RefusesWhatIsNoIdxFile) {
  EXPECT_THAT(refusal("<html>"), HasSubstr("no IDX file"));
  EXPECT_THAT(refusal(text("\0\0\x0a\0\1")), HasSubstr("no IDX file"));
  EXPECT_THAT(refusal(text("\1\0\x08\0\1")), HasSubstr("no IDX file"));
}

TEST(Idx, TakesNoMoreFromACompressedFileThanItsHeaderStates) {
  EXPECT_THAT(refusal(files::read(golden("bomb.idx"))), HasSubstr("takes 10 bytes, but more follow"));
  EXPECT_THAT(refusal(files::read(golden("boast.idx"))),
              HasSubstr("takes 4294967295 bytes, but no more than"));
}

TEST(Idx, NoticesADamagedChecksum) {
  std::string file = files::read(golden("u8_packed.idx"));
  file[file.size() - 6] = static_cast<char>(file[file.size() - 6] ^ 1);  // inside the CRC
  EXPECT_THAT(refusal(file), HasSubstr("damaged"));
}

TEST(Idx, SurvivesDamagedFiles) {
  for (const char* name : {"u8.idx", "f32.idx", "u8_packed.idx", "f32_packed.idx"})
    test::survive_mutations(files::read(golden(name)), 64, [](auto bytes) {
      const IdxArray array = formats::parse_idx(bytes, "damaged");
      (void)values<std::byte>(array);
    });
}

}  // namespace
}  // namespace hasten

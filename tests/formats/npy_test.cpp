#include <array>
#include <bit>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <hasten/base/error.h>
#include <hasten/base/files.h>
#include <hasten/formats/npy.h>

#include "formats/bytes.h"
#include "formats/mutations.h"
#include "support/temporary_folder.h"

namespace hasten {
namespace {

using formats::as_bytes;
using formats::DType;
using formats::NpyArray;
using test::TemporaryFolder;
using testing::ElementsAre;
using testing::HasSubstr;

std::filesystem::path golden(const char* name) {
  return std::filesystem::path(HASTEN_GOLDEN_DIR) / "formats" / name;
}

template <class Number>
std::vector<Number> values(const NpyArray& array) {
  std::vector<Number> out(array.bytes.size() / sizeof(Number));
  formats::copy_row_major(array, std::as_writable_bytes(std::span(out)));
  return out;
}

/// A file of version 1 with this header, unpadded, and `data_bytes` zeros.
std::string make_file(const std::string& header, std::size_t data_bytes) {
  std::string file("\x93NUMPY\x01\x00", 8);
  formats::append_little_endian(file, static_cast<std::uint16_t>(header.size()));
  return file + header + std::string(data_bytes, '\0');
}

std::string with_shape(const std::string& shape, std::size_t data_bytes) {
  return make_file("{'descr': '<i2', 'fortran_order': False, 'shape': " + shape + ", }\n", data_bytes);
}

/// The message with which a file is refused, or "" if it is not.
std::string refusal(const std::string& file, ErrorCode code = ErrorCode::kCorruptData) {
  try {
    (void)formats::parse_npy(as_bytes(file), "x.npy");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("x.npy"));
    return error.what();
  }
  return "";
}

TEST(Npy, ReadsEveryOrderAndVersionThatNumpyWrites) {
  for (const char* name : {"c_order.npy", "fortran_order.npy", "version_2.npy", "version_3.npy"}) {
    const NpyArray array = formats::read_npy(golden(name));
    EXPECT_EQ(array.dtype, DType::kI16) << name;
    EXPECT_THAT(array.shape, ElementsAre(2, 3)) << name;
    EXPECT_THAT(values<std::int16_t>(array), ElementsAre(1, 2, 3, 4, 5, 6)) << name;
  }
  EXPECT_TRUE(formats::read_npy(golden("fortran_order.npy")).fortran_order);
}

TEST(Npy, ReadsBigEndianNumbers) {
  const NpyArray array = formats::read_npy(golden("big_endian.npy"));
  EXPECT_TRUE(array.big_endian);
  EXPECT_THAT(values<float>(array), ElementsAre(1.0F, 2.0F));
}

// Both at once, and a complex number, whose two halves are reversed each by itself.
TEST(Npy, ReadsBigEndianFortranOrderAndComplexNumbers) {
  std::string file = make_file("{'descr': '>i2', 'fortran_order': True, 'shape': (2, 3), }\n", 0);
  for (const int value : {1, 4, 2, 5, 3, 6}) file += std::string{'\0', static_cast<char>(value)};
  EXPECT_THAT(values<std::int16_t>(formats::parse_npy(as_bytes(file), "x")), ElementsAre(1, 2, 3, 4, 5, 6));
  std::string complex = make_file("{'descr': '>c8', 'fortran_order': False, 'shape': (1,), }\n", 0);
  complex += std::string("\x3f\x80\x00\x00\x40\x00\x00\x00", 8);
  EXPECT_THAT(values<float>(formats::parse_npy(as_bytes(complex), "x")), ElementsAre(1.0F, 2.0F));
}

TEST(Npy, ReadsAThreeDimensionalArrayInFortranOrder) {
  // Element [i][j][k] of shape (2, 3, 4) holds 100 i + 10 j + k.
  std::string file = make_file("{'descr': '|u1', 'fortran_order': True, 'shape': (2, 3, 4), }\n", 0);
  for (int k = 0; k < 4; ++k)
    for (int j = 0; j < 3; ++j)
      for (int i = 0; i < 2; ++i) file += static_cast<char>(100 * i + 10 * j + k);
  const auto read = values<std::uint8_t>(formats::parse_npy(as_bytes(file), "x"));
  for (std::size_t n = 0; n < read.size(); ++n) EXPECT_EQ(read[n], 100 * (n / 12) + 10 * (n / 4 % 3) + n % 4);
}

TEST(Npy, ReadsScalarsAndEmptyArrays) {
  const NpyArray scalar = formats::read_npy(golden("scalar.npy"));
  EXPECT_TRUE(scalar.shape.empty());
  EXPECT_THAT(values<double>(scalar), ElementsAre(2.5));
  const NpyArray empty = formats::read_npy(golden("empty.npy"));
  EXPECT_THAT(empty.shape, ElementsAre(0, 3));
  EXPECT_TRUE(empty.bytes.empty());
  EXPECT_TRUE(values<float>(empty).empty());
}

TEST(Npy, ReadsHeadersOfAnyLengthAndStyle) {
  const std::string header = "{'descr': '<i2', 'fortran_order': False, 'shape': (2, 3), }";
  EXPECT_EQ(refusal(make_file(header + std::string(40'000, ' ') + "\n", 12)), "");
  EXPECT_EQ(refusal(make_file(R"({"shape":(2,3),"descr":"<i2","fortran_order":False})", 12)), "");
  EXPECT_EQ(refusal(make_file("{'shape': (2L, 3L), 'fortran_order': False, 'descr': 'i2'}", 12)), "");
}

TEST(Npy, WritesWhatNumpyWritesByteForByte) {
  const TemporaryFolder folder;
  for (const char* name : {"c_order.npy", "scalar.npy", "empty.npy", "complex.npy", "half.npy", "bool.npy"}) {
    const NpyArray array = formats::read_npy(golden(name));
    formats::write_npy(folder / name, array.dtype, array.shape, array.bytes);
    EXPECT_EQ(files::read(folder / name), files::read(golden(name))) << name;
  }
}

TEST(Npy, RefusesToWriteWhatNumpyCannotRead) {
  const TemporaryFolder folder;
  const std::array<std::byte, 4> bytes{};
  EXPECT_THROW(formats::write_npy(folder / "x", DType::kBF16, {2}, bytes), Error);
  EXPECT_THROW(formats::write_npy(folder / "x", DType::kF32, {2}, bytes), Error);
  EXPECT_THROW(formats::write_npy(folder / "x", DType::kF32, {-1}, bytes), Error);
  EXPECT_THROW(formats::write_npy(folder / "x", DType::kF32, std::vector<std::int64_t>(65, 1), bytes), Error);
  EXPECT_EQ(folder.entries(), 0U);
}

TEST(Npy, ReadsMoreElementsThan32BitsCount) {
  const TemporaryFolder folder;
  const std::string header =
      make_file("{'descr': '|u1', 'fortran_order': False, 'shape': (3000000000,), }\n", 0);
  files::write_atomically(folder / "big.npy", header);
  ASSERT_EQ(::truncate((folder / "big.npy").c_str(), static_cast<off_t>(header.size() + 3'000'000'000)), 0);
  const NpyArray array = formats::read_npy(folder / "big.npy");
  EXPECT_THAT(array.shape, ElementsAre(3'000'000'000));
  EXPECT_EQ(array.bytes[2'999'999'999], std::byte{0});
}

TEST(Npy, RefusesAFileThatIsCutOrTooLong) {
  const std::string whole = files::read(golden("c_order.npy"));
  EXPECT_THAT(refusal(whole.substr(0, whole.size() - 1)), HasSubstr("takes 12 bytes, but 11 follow"));
  EXPECT_THAT(refusal(whole + "x"), HasSubstr("takes 12 bytes, but 13 follow"));
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_NE(refusal(whole.substr(0, size)), "") << size;
  const std::string second = files::read(golden("version_2.npy"));
  for (std::size_t size = 0; size < second.size(); ++size)
    EXPECT_NE(refusal(second.substr(0, size)), "") << size;
}

TEST(Npy, RefusesAHeaderThatIsLongerThanTheFile) {
  std::string file("\x93NUMPY\x02\x00\xff\xff\xff\xff{}", 14);
  EXPECT_THAT(refusal(file), HasSubstr("4294967295 bytes, but only 2"));
  file[6] = 1;
  EXPECT_THAT(refusal(file), HasSubstr("65535 bytes"));
  file[6] = 4;
  EXPECT_THAT(refusal(file), HasSubstr("4.0"));
}

TEST(Npy, RefusesShapesThatOverflowOrAreNone) {
  EXPECT_EQ(refusal(with_shape("(2, 3)", 12)), "");
  EXPECT_THAT(refusal(with_shape("(4294967296, 4294967296)", 12)), HasSubstr("too large"));
  EXPECT_THAT(refusal(with_shape("(9223372036854775807,)", 12)), HasSubstr("too large"));
  EXPECT_THAT(refusal(with_shape("(9223372036854775808,)", 12)), HasSubstr("64 bits"));
  EXPECT_THAT(refusal(with_shape("(0, 4294967296, 4294967296)", 0)), HasSubstr("too large"));
  EXPECT_THAT(refusal(with_shape("(-6,)", 12)), HasSubstr("a size"));
  EXPECT_THAT(refusal(with_shape("(6)", 12)), HasSubstr("tuple"));
  EXPECT_THAT(refusal(with_shape("(2 3)", 12)), HasSubstr("','"));
  EXPECT_THAT(refusal(with_shape("(2.0, 3)", 12)), HasSubstr("','"));
  EXPECT_THAT(refusal(with_shape("(,)", 2)), HasSubstr("a size"));
  EXPECT_THAT(refusal(with_shape("6", 12)), HasSubstr("'('"));
}

TEST(Npy, RefusesHeadersThatAreNotNumpys) {
  EXPECT_THAT(refusal(make_file("", 0)), HasSubstr("'{'"));
  EXPECT_THAT(refusal(make_file("{'descr': '<i2', 'shape': (1,), }", 2)), HasSubstr("lacks"));
  EXPECT_THAT(
      refusal(make_file("{'descr': '<i2', 'descr': '<i4', 'shape': (1,), 'fortran_order': False}", 2)),
      HasSubstr("twice"));
  EXPECT_THAT(refusal(make_file("{'descr': '<i2', 'x': 1}", 2)), HasSubstr("'x'"));
  EXPECT_THAT(refusal(make_file("{'descr': '<i2', 'shape': (1,), 'fortran_order': 0}", 2)),
              HasSubstr("True or False"));
  EXPECT_THAT(refusal(make_file("{'descr': '<i2', 'shape': (1,), 'fortran_order': False} x", 2)),
              HasSubstr("the end"));
  EXPECT_THAT(refusal(make_file("{'descr", 2)), HasSubstr("quote"));
  EXPECT_THAT(refusal("PK\x03\x04 an archive of arrays"), HasSubstr("no .npy file"));
}

TEST(Npy, RefusesElementsThatAreNoNumbers) {
  for (const char* type :
       {"'<U5'", "'|S3'", "'|O'", "'<f16'", "'<M8[ns]'", "'<V2'", "''", "'<'", "[('a', '<i2')]"})
    EXPECT_THAT(refusal(make_file(concat("{'descr': ", type, ", 'shape': (1,), 'fortran_order': False}"), 2),
                        ErrorCode::kInvalidArgument),
                HasSubstr("cannot be read"))
        << type;
}

TEST(Npy, RefusesToCopyIntoAPlaceOfAnotherSize) {
  std::array<std::byte, 11> place{};
  EXPECT_THROW(formats::copy_row_major(formats::read_npy(golden("c_order.npy")), place), Error);
}

TEST(Npy, SurvivesDamagedFiles) {
  for (const char* name : {"c_order.npy", "fortran_order.npy", "version_2.npy", "big_endian.npy"})
    test::survive_mutations(files::read(golden(name)), 80, [](auto bytes) {
      const NpyArray array = formats::parse_npy(bytes, "damaged");
      (void)values<std::byte>(array);
    });
}

}  // namespace
}  // namespace hasten

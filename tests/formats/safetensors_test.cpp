#include <array>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <numeric>
#include <optional>

#include <hasten/base/error.h>
#include <hasten/base/files.h>
#include <hasten/formats/safetensors.h>

#include "formats/bytes.h"
#include "formats/mutations.h"
#include "support/temporary_folder.h"

namespace hasten {
namespace {

using formats::as_bytes;
using formats::DType;
using formats::TensorView;
using test::TemporaryFolder;
using testing::ElementsAre;
using testing::HasSubstr;

std::filesystem::path golden(const char* name) {
  return std::filesystem::path(HASTEN_GOLDEN_DIR) / "formats" / name;
}

/// A file of a header, padded or not as given, and `data_bytes` zeros; the length field can lie.
std::string make_file(const std::string& header, std::size_t data_bytes,
                      std::optional<std::uint64_t> length = std::nullopt) {
  std::string file;
  formats::append_little_endian(file, length.value_or(header.size()));
  return file + header + std::string(data_bytes, '\0');
}

/// The message with which a file is refused, or "" if it is not.
std::string refusal(const std::string& file) {
  try {
    (void)formats::parse_safetensors(as_bytes(file), "w.safetensors");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCorruptData);
    EXPECT_THAT(error.what(), HasSubstr("w.safetensors"));
    return error.what();
  }
  return "";
}

TEST(Safetensors, ReadsEveryTypeThatPythonWrites) {
  const formats::SafetensorsFile file(golden("every_dtype.safetensors"));
  ASSERT_EQ(file.tensors().size(), 19U);
  EXPECT_EQ(file.tensors().front().dtype, DType::kU64);
  EXPECT_EQ(file.at("bfloat16").dtype, DType::kBF16);
  EXPECT_EQ(file.at("float8_e4m3fn").dtype, DType::kF8E4M3);
  for (const TensorView& tensor : file.tensors()) {
    ASSERT_EQ(tensor.bytes.size(), 2 * formats::size_of(tensor.dtype)) << tensor.name;
    for (std::size_t i = 0; i < tensor.bytes.size(); ++i)
      EXPECT_EQ(std::to_integer<std::size_t>(tensor.bytes[i]), i);
  }
}

TEST(Safetensors, ReadsShapesNamesAndMetadata) {
  const formats::SafetensorsFile file(golden("shapes.safetensors"));
  EXPECT_THAT(file.metadata(), ElementsAre(std::pair<const std::string, std::string>("format", "pt")));
  EXPECT_TRUE(file.at("scalar").shape.empty());
  EXPECT_EQ(formats::read_little_endian<std::uint32_t>(file.at("scalar").bytes),
            std::bit_cast<std::uint32_t>(0.5F));
  EXPECT_THAT(file.at("empty").shape, ElementsAre(0, 3));
  EXPECT_TRUE(file.at("empty").bytes.empty());
  EXPECT_THAT(file.at("layer.10.weight").shape, ElementsAre(2, 3));
  EXPECT_EQ(std::to_integer<int>(file.at("odd \"name\"\\ \x01\n\x7f/é").bytes[0]), 7);
  EXPECT_EQ(file.find("layer.3.weight"), nullptr);
  try {
    (void)file.at("layer.3.weight");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNotFound);
    EXPECT_THAT(error.what(), HasSubstr("layer.3.weight"));
  }
}

TEST(Safetensors, WritesWhatPythonWritesByteForByte) {
  const TemporaryFolder folder;
  for (const char* name :
       {"every_dtype.safetensors", "one.safetensors", "shapes.safetensors", "metadata_only.safetensors"}) {
    const formats::SafetensorsFile file(golden(name));
    std::vector<TensorView> tensors = file.tensors();
    std::reverse(tensors.begin(), tensors.end());
    formats::write_safetensors(folder / name, tensors, file.metadata());
    EXPECT_EQ(files::read(folder / name), files::read(golden(name))) << name;
  }
  EXPECT_EQ(std::filesystem::file_size(folder / "one.safetensors"), 88U);
}

TEST(Safetensors, KeepsTheBytesAliveThroughTheMap) {
  const TemporaryFolder folder;
  const std::array<float, 2> values{1, 2};
  formats::write_safetensors(folder / "a",
                             std::array{TensorView{"x", DType::kF32, {2}, std::as_bytes(std::span(values))}});
  std::shared_ptr<const files::Map> map;
  std::span<const std::byte> bytes;
  {
    const formats::SafetensorsFile file(folder / "a");
    bytes = file.at("x").bytes;
    map = file.map();
  }
  std::filesystem::remove(folder / "a");
  EXPECT_EQ(formats::read_little_endian<std::uint32_t>(bytes.subspan(4)), std::bit_cast<std::uint32_t>(2.0F));
}

TEST(Safetensors, AcceptsWhatTheFormatLeavesFree) {
  const std::string one = R"({"w":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}})";
  EXPECT_EQ(refusal(make_file(one, 16)), "");        // no padding
  EXPECT_EQ(refusal(make_file(one + " ", 16)), "");  // an odd length
  EXPECT_EQ(refusal(make_file("{}", 0)), "");        // no tensor
  EXPECT_EQ(refusal(make_file(R"({"w":{"extra":[1],"data_offsets":[0,4],"shape":[],"dtype":"F32"}})", 4)),
            "");
  EXPECT_EQ(refusal(make_file(R"({"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]},)"
                              R"("z":{"dtype":"U8","shape":[0],"data_offsets":[1,1]},)"
                              R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                              3)),
            "");
}

TEST(Safetensors, RefusesAHeaderLengthThatTheFileCannotHold) {
  const std::string one = R"({"w":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}})";
  EXPECT_THAT(refusal(make_file(one, 16, UINT64_MAX)), HasSubstr("18446744073709551615"));
  EXPECT_THAT(refusal(make_file(one, 16, UINT64_MAX - 7)), HasSubstr("cut"));
  EXPECT_THAT(refusal(make_file(one, 16, 74)), HasSubstr("74 bytes, but only 73"));
  EXPECT_THAT(refusal(make_file("{}", 0, 3)), HasSubstr("cut"));
  EXPECT_THAT(refusal(""), HasSubstr("0 bytes"));
  EXPECT_THAT(refusal("1234567"), HasSubstr("7 bytes"));
  EXPECT_THAT(refusal(make_file("", 0)), HasSubstr("'{'"));
}

TEST(Safetensors, RefusesAHeaderThatIsNotTheFormatsJson) {
  const std::string one = R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  EXPECT_THAT(refusal(make_file(" " + one, 4)), HasSubstr("'{'"));
  EXPECT_THAT(refusal(make_file(one + std::string(3, '\0'), 4)), HasSubstr("NUL"));
  EXPECT_THAT(refusal(make_file(one + "x", 4)), HasSubstr("JSON"));
  EXPECT_THAT(refusal(make_file("{\"\xff\":1}", 0)), HasSubstr("JSON"));
  EXPECT_THAT(refusal(make_file("{\"w\":[[[[1]]]", 0)), HasSubstr("JSON"));
  EXPECT_THAT(refusal(make_file("{\"w\":" + std::string(1'000'000, '['), 0)), HasSubstr("deeper"));
}

TEST(Safetensors, RefusesANameThatOccursTwice) {
  const std::string w = R"("w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  EXPECT_THAT(refusal(make_file("{" + w + "," + w + "}", 4)), HasSubstr("'w' twice"));
  EXPECT_THAT(
      refusal(make_file(R"({"w":{"dtype":"F32","dtype":"I32","shape":[1],"data_offsets":[0,4]}})", 4)),
      HasSubstr("'dtype' twice"));
  EXPECT_THAT(refusal(make_file(R"({"__metadata__":{"a":"1","a":"2"}})", 0)), HasSubstr("'a' twice"));
}

TEST(Safetensors, RefusesOffsetsThatDoNotCoverTheFile) {
  const auto file = [](const char* offsets, std::size_t data) {
    return make_file(std::string(R"({"w":{"dtype":"F32","shape":[2,2],"data_offsets":)") + offsets + "}}",
                     data);
  };
  EXPECT_EQ(refusal(file("[0,16]", 16)), "");
  EXPECT_THAT(refusal(file("[16,0]", 16)), HasSubstr("'w'"));
  EXPECT_THAT(refusal(file("[-16,0]", 16)), HasSubstr("-16"));
  EXPECT_THAT(refusal(file("[0,17]", 16)), HasSubstr("16 bytes of tensors"));
  EXPECT_THAT(refusal(file("[0,18446744073709551615]", 16)), HasSubstr("18446744073709551615"));
  EXPECT_THAT(refusal(file("[0,9223372036854775807]", 16)), HasSubstr("9223372036854775807"));
  EXPECT_THAT(refusal(file("[0,1e30]", 16)), HasSubstr("no size"));
  EXPECT_THAT(refusal(file("[0,16.0]", 16)), HasSubstr("no size"));
  EXPECT_THAT(refusal(file("[0]", 16)), HasSubstr("two numbers"));
  EXPECT_THAT(refusal(file("[0,16,16]", 16)), HasSubstr("two numbers"));
  EXPECT_THAT(refusal(file("16", 16)), HasSubstr("two numbers"));
  EXPECT_THAT(refusal(file("[0,12]", 12)), HasSubstr("needs 16 bytes"));
  EXPECT_THAT(refusal(file("[0,16]", 17)), HasSubstr("16 bytes, but 17 follow"));
  EXPECT_THAT(refusal(file("[1,17]", 17)), HasSubstr("gap"));
}

TEST(Safetensors, RefusesTensorsThatOverlapOrLeaveAGap) {
  const auto two = [](int begin, std::size_t data) {
    return make_file(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                     R"("b":{"dtype":"U8","shape":[4],"data_offsets":[)" +
                         std::to_string(begin) + "," + std::to_string(begin + 4) + "]}}",
                     data);
  };
  EXPECT_EQ(refusal(two(4, 8)), "");
  EXPECT_THAT(refusal(two(3, 7)), HasSubstr("overlap"));
  EXPECT_THAT(refusal(two(0, 4)), HasSubstr("overlap"));
  EXPECT_THAT(refusal(two(5, 9)), HasSubstr("gap"));
}

TEST(Safetensors, RefusesShapesThatTheBytesCannotHave) {
  const auto file = [](const char* dtype, const char* shape) {
    return make_file(
        concat(R"({"w":{"dtype":)", dtype, R"(,"shape":)", shape, R"(,"data_offsets":[0,65536]}})"), 65536);
  };
  EXPECT_THAT(refusal(file(R"("F32")", "[32,8]")), HasSubstr("[32, 8] needs 1024 bytes"));
  EXPECT_THAT(refusal(file(R"("F32")", "[-1]")), HasSubstr("no size"));
  EXPECT_THAT(refusal(file(R"("F32")", "[4294967296,4294967296]")), HasSubstr("too large"));
  EXPECT_THAT(refusal(file(R"("F32")", "[9223372036854775807]")), HasSubstr("too large"));
  EXPECT_THAT(refusal(file(R"("F32")", "16384")), HasSubstr("shape"));
  EXPECT_THAT(refusal(file(R"("F32")", "[\"16384\"]")), HasSubstr("no size"));
  EXPECT_THAT(refusal(file(R"("F4")", "[131072]")), HasSubstr("F4"));
  EXPECT_THAT(refusal(file("7", "[65536]")), HasSubstr("type 7"));
  EXPECT_THAT(refusal(make_file(R"({"w":{"dtype":"F32","shape":[0]}})", 0)), HasSubstr("no 'data_offsets'"));
  EXPECT_THAT(refusal(make_file(R"({"w":[1]})", 0)), HasSubstr("'w'"));
  EXPECT_THAT(refusal(make_file(R"({"__metadata__":{"a":1}})", 0)), HasSubstr("text"));
  EXPECT_THAT(refusal(make_file(R"({"__metadata__":[]})", 0)), HasSubstr("object"));
}

TEST(Safetensors, SurvivesDamagedFiles) {
  for (const char* name : {"shapes.safetensors", "one.safetensors", "metadata_only.safetensors"})
    test::survive_mutations(files::read(golden(name)), 560,
                            [](auto bytes) { (void)formats::parse_safetensors(bytes, "damaged"); });
}

TEST(Safetensors, RefusesToWriteWhatItCouldNotRead) {
  const TemporaryFolder folder;
  const std::array<std::byte, 8> bytes{};
  const auto refused = [&](std::vector<TensorView> tensors,
                           std::map<std::string, std::string> metadata = {}) {
    try {
      formats::write_safetensors(folder / "w", tensors, metadata);
      return std::string();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      return std::string(error.what());
    }
  };
  const TensorView good{"w", DType::kF32, {2}, bytes};
  EXPECT_THAT(refused({good, good}), HasSubstr("'w' is given twice"));
  EXPECT_THAT(refused({{"w", DType::kF32, {3}, bytes}}), HasSubstr("needs 12 bytes; 8 were given"));
  EXPECT_THAT(refused({{"w", DType::kF32, {-2}, bytes}}), HasSubstr("too many"));
  EXPECT_THAT(refused({{"w", DType::kC128, {0}, {}}}), HasSubstr("C128"));
  EXPECT_THAT(refused({{"__metadata__", DType::kF32, {2}, bytes}}), HasSubstr("metadata"));
  EXPECT_THAT(refused({{"\xff", DType::kF32, {2}, bytes}}), HasSubstr("UTF-8"));
  EXPECT_THAT(refused({good}, {{"a", "\xff"}}), HasSubstr("UTF-8"));
  EXPECT_EQ(folder.entries(), 0U);
}

TEST(Safetensors, ReadsAndWritesManyTensors) {
  const TemporaryFolder folder;
  std::vector<std::uint32_t> values(20'000);
  std::iota(values.begin(), values.end(), 0U);
  std::vector<TensorView> tensors;
  for (const std::uint32_t& value : values)
    tensors.push_back({concat("layer.", value), DType::kU32, {}, std::as_bytes(std::span(&value, 1))});
  formats::write_safetensors(folder / "many", tensors);
  const formats::SafetensorsFile file(folder / "many");
  ASSERT_EQ(file.tensors().size(), values.size());
  for (const std::uint32_t value : values)
    ASSERT_EQ(formats::read_little_endian<std::uint32_t>(file.at(concat("layer.", value)).bytes), value);
}

}  // namespace
}  // namespace hasten

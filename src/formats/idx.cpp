#include <algorithm>
#include <array>
#include <new>
#include <optional>

#include <hasten/base/error.h>
#include <hasten/base/files.h>
#include <hasten/formats/idx.h>

#include "formats/bytes.h"
#include "formats/gzip.h"

namespace hasten::formats {
namespace {

constexpr std::string_view kRead = "read_idx";
constexpr std::size_t kMarkBytes = 4;
constexpr std::size_t kSizeBytes = 4;

template <class... Parts>
[[noreturn]] void corrupt(std::string_view file, const Parts&... parts) {
  fail(ErrorCode::kCorruptData, kRead, "'", file, "': ", parts...);
}

std::optional<DType> dtype_of(std::byte code) {
  switch (std::to_integer<int>(code)) {
    case 0x08:
      return DType::kU8;
    case 0x09:
      return DType::kI8;
    case 0x0B:
      return DType::kI16;
    case 0x0C:
      return DType::kI32;
    case 0x0D:
      return DType::kF32;
    case 0x0E:
      return DType::kF64;
    default:
      return std::nullopt;
  }
}

/// Type and number of dimensions, from the first four bytes.
struct Mark {
  DType dtype;
  std::size_t dimensions;
};

Mark read_mark(std::span<const std::byte> bytes, std::string_view file) {
  if (bytes.size() < kMarkBytes) corrupt(file, "the content has only ", bytes.size(), " bytes: it is cut.");
  const auto dtype = dtype_of(bytes[2]);
  if (bytes[0] != std::byte{0} || bytes[1] != std::byte{0} || !dtype)
    corrupt(file, "the content does not begin with two zeros and a type's number, so it is no IDX file.");
  return {*dtype, std::to_integer<std::size_t>(bytes[3])};
}

std::vector<std::int64_t> read_shape(std::span<const std::byte> bytes, std::size_t dimensions,
                                     std::string_view file) {
  if (bytes.size() < kSizeBytes * dimensions)
    corrupt(file, "the content ends inside the sizes of its ", dimensions, " dimensions: it is cut.");
  std::vector<std::int64_t> shape;
  for (std::size_t i = 0; i < dimensions; ++i)
    shape.push_back(read_big_endian<std::uint32_t>(bytes.subspan(kSizeBytes * i)));
  return shape;
}

std::size_t expected_bytes(const IdxArray& array, std::string_view file) {
  const auto expected = byte_count(array.shape, array.dtype);
  if (!expected) corrupt(file, "the shape ", to_string(array.shape), " is too large.");
  return static_cast<std::size_t>(*expected);
}

[[noreturn]] void wrong_size(const IdxArray& array, std::size_t expected, std::string_view found,
                             std::string_view file) {
  corrupt(file, "an array of type ", name_of(array.dtype), " and shape ", to_string(array.shape), " takes ",
          expected, " bytes, but ", found, " follow the header.");
}

/// Memory for elements that is left untouched until it is written, so that it costs only what comes.
std::shared_ptr<std::byte[]> allocate(std::size_t size, std::string_view file) {
  try {
    return std::shared_ptr<std::byte[]>(new std::byte[size]);
  } catch (const std::bad_alloc&) {
    fail(ErrorCode::kSystem, kRead, "'", file, "': there is no memory for its ", size, " bytes.");
  }
}

/// Turns each number of `size` bytes from `from` around, into `to`, which may be the same place.
void reverse_numbers(std::span<const std::byte> from, std::byte* to, std::size_t size) {
  std::array<std::byte, 8> number{};
  for (std::size_t i = 0; i < from.size(); i += size) {
    std::copy_n(from.data() + i, size, number.data());
    std::reverse_copy(number.data(), number.data() + size, to + i);
  }
}

IdxArray parse_plain(std::span<const std::byte> bytes, std::string_view file,
                     std::shared_ptr<const void> owner) {
  const Mark mark = read_mark(bytes, file);
  const std::span<const std::byte> rest = bytes.subspan(kMarkBytes);
  IdxArray array{.dtype = mark.dtype, .shape = read_shape(rest, mark.dimensions, file)};
  const std::span<const std::byte> elements = rest.subspan(kSizeBytes * mark.dimensions);
  const std::size_t expected = expected_bytes(array, file);
  if (elements.size() != expected) wrong_size(array, expected, std::to_string(elements.size()), file);
  if (const std::size_t size = size_of(array.dtype); size > 1) {
    const auto memory = allocate(expected, file);
    reverse_numbers(elements, memory.get(), size);
    array.bytes = {memory.get(), expected};
    array.owner = memory;
  } else {
    array.bytes = elements;
    array.owner = std::move(owner);
  }
  return array;
}

IdxArray parse_compressed(std::span<const std::byte> bytes, std::string_view file) {
  GzipReader reader(bytes, file);
  std::array<std::byte, kMarkBytes + kSizeBytes * 255> head{};
  const Mark mark = read_mark(std::span(head).first(reader.read(std::span(head).first(kMarkBytes))), file);
  const std::span<std::byte> sizes = std::span(head).first(kSizeBytes * mark.dimensions);
  IdxArray array{.dtype = mark.dtype,
                 .shape = read_shape(sizes.first(reader.read(sizes)), mark.dimensions, file)};
  const std::size_t expected = expected_bytes(array, file);
  if (expected / kGzipHighestRatio > bytes.size())
    wrong_size(array, expected, concat("no more than ", bytes.size() * kGzipHighestRatio), file);
  const auto memory = allocate(expected, file);
  const std::span<std::byte> elements(memory.get(), expected);
  if (const std::size_t found = reader.read(elements); found != expected)
    wrong_size(array, expected, std::to_string(found), file);
  std::byte more{};
  if (reader.read({&more, 1}) != 0) wrong_size(array, expected, "more", file);
  if (const std::size_t size = size_of(array.dtype); size > 1) reverse_numbers(elements, memory.get(), size);
  array.bytes = elements;
  array.owner = memory;
  return array;
}

}  // namespace

IdxArray read_idx(const std::filesystem::path& path) {
  const auto map = files::Map::open(path);
  return parse_idx(map->bytes(), path.string(), map);
}

IdxArray parse_idx(std::span<const std::byte> bytes, std::string_view file,
                   std::shared_ptr<const void> owner) {
  return is_gzip(bytes) ? parse_compressed(bytes, file) : parse_plain(bytes, file, std::move(owner));
}

}  // namespace hasten::formats

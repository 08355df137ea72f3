#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include <hasten/base/error.h>
#include <hasten/formats/npy.h>

#include "formats/bytes.h"

namespace hasten::formats {
namespace {

constexpr std::string_view kRead = "read_npy";
constexpr std::string_view kWrite = "write_npy";
constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kAlignment = 64;       // of the array in a file that NumPy writes
constexpr std::size_t kGrowthDigits = 21;    // NumPy leaves room for the first size to grow to so many digits
constexpr std::size_t kMostDimensions = 64;  // NumPy's limit

struct NamedType {
  std::string_view name;  // NumPy's, without the byte order
  DType dtype;
};

constexpr std::array<NamedType, 14> kTypes{{
    {"b1", DType::kBool},
    {"i1", DType::kI8},
    {"i2", DType::kI16},
    {"i4", DType::kI32},
    {"i8", DType::kI64},
    {"u1", DType::kU8},
    {"u2", DType::kU16},
    {"u4", DType::kU32},
    {"u8", DType::kU64},
    {"f2", DType::kF16},
    {"f4", DType::kF32},
    {"f8", DType::kF64},
    {"c8", DType::kC64},
    {"c16", DType::kC128},
}};

template <class... Parts>
[[noreturn]] void corrupt(std::string_view file, const Parts&... parts) {
  fail(ErrorCode::kCorruptData, kRead, "'", file, "': ", parts...);
}

/// Reads the header: a Python dictionary literal with the three keys of the format, in any order.
class HeaderParser {
 public:
  HeaderParser(std::string_view text, std::string_view file) : text_(text), file_(file) {}

  NpyArray parse() {
    expect('{');
    while (!take('}')) {
      parse_entry();
      if (!take(',')) {
        expect('}');
        break;
      }
    }
    skip_blanks();
    if (at_ != text_.size()) wrong("the end");
    if (!has_type_ || !has_order_ || !has_shape_)
      corrupt(file_, "the header lacks 'descr', 'fortran_order' or 'shape': ", shown(text_), ".");
    return std::move(array_);
  }

 private:
  void parse_entry() {
    const std::string_view key = string();
    expect(':');
    if (key == "descr" && !has_type_) {
      has_type_ = true;
      set_type();
    } else if (key == "fortran_order" && !has_order_) {
      has_order_ = true;
      array_.fortran_order = boolean();
    } else if (key == "shape" && !has_shape_) {
      has_shape_ = true;
      set_shape();
    } else {
      corrupt(file_, "the header has the key '", shown(key), "', which is unknown or there twice.");
    }
  }

  void set_type() {
    skip_blanks();
    if (peek() == '[')
      fail(ErrorCode::kInvalidArgument, kRead, "'", file_,
           "': an array of records cannot be read. Save each field as an array of its own.");
    const std::string_view name = string();
    const bool marked = !name.empty() && std::string_view("<>|=").find(name[0]) != std::string_view::npos;
    const std::string_view type = marked ? name.substr(1) : name;
    const auto* found =
        std::find_if(kTypes.begin(), kTypes.end(), [&](const auto& known) { return known.name == type; });
    if (found == kTypes.end())
      fail(ErrorCode::kInvalidArgument, kRead, "'", file_, "': elements of type '", shown(name),
           "' cannot be read. Save booleans, integers, or floating-point numbers of at most 64 bits.");
    array_.dtype = found->dtype;
    array_.big_endian = marked && name[0] == '>' && size_of(found->dtype) > 1;
  }

  void set_shape() {
    expect('(');
    bool comma = true;  // before the first size none is needed
    while (!take(')')) {
      if (!comma) wrong("','");
      array_.shape.push_back(number());
      comma = take(',');
    }
    if (array_.shape.size() == 1 && !comma) corrupt(file_, "the shape is a number in brackets, not a tuple.");
  }

  std::string_view string() {
    skip_blanks();
    const char quote = peek();
    if (quote != '\'' && quote != '"') wrong("a text in quotes");
    const std::size_t begin = ++at_;
    at_ = std::min(text_.find(quote, begin), text_.size());
    if (at_ == text_.size()) wrong("a closing quote");
    return text_.substr(begin, at_++ - begin);
  }

  bool boolean() {
    skip_blanks();
    for (const std::string_view word : {"True", "False"}) {
      if (text_.substr(at_, word.size()) != word) continue;
      at_ += word.size();
      return word == "True";
    }
    wrong("True or False");
  }

  std::int64_t number() {
    skip_blanks();
    const std::size_t begin = at_;
    std::int64_t value = 0;
    for (; peek() >= '0' && peek() <= '9'; ++at_)
      if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, peek() - '0', &value))
        corrupt(file_, "a size of the shape does not fit 64 bits: ", shown(text_.substr(begin)), ".");
    if (at_ == begin) wrong("a size");
    if (peek() == 'L') ++at_;  // Python 2 wrote long integers so
    return value;
  }

  [[nodiscard]] char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  void skip_blanks() {
    while (peek() == ' ' || peek() == '\n' || peek() == '\t') ++at_;
  }

  bool take(char wanted) {
    skip_blanks();
    if (peek() != wanted) return false;
    ++at_;
    return true;
  }

  void expect(char wanted) {
    if (!take(wanted)) wrong(concat('\'', wanted, '\''));
  }

  [[noreturn]] void wrong(std::string_view expected) const {
    corrupt(file_, "at character ", at_, " of the header ", expected, " was expected, not '",
            shown(text_.substr(at_)), "'.");
  }

  /// Text from the file, short enough for a message.
  static std::string_view shown(std::string_view text) { return text.substr(0, 100); }

  std::string_view text_;
  std::string_view file_;
  std::size_t at_ = 0;
  NpyArray array_;
  bool has_type_ = false;
  bool has_order_ = false;
  bool has_shape_ = false;
};

/// Where the header's text lies, after its length has been checked against the file.
struct HeaderPlace {
  std::size_t begin;
  std::size_t size;
};

HeaderPlace find_header(std::span<const std::byte> bytes, std::string_view file) {
  const std::string_view text = as_text(bytes);
  if (!text.starts_with(kMagic))
    corrupt(file, "the file does not begin with NumPy's mark, so it is no .npy file.");
  const std::size_t version_at = kMagic.size();
  if (text.size() < version_at + 4) corrupt(file, "the file has only ", text.size(), " bytes: it is cut.");
  const int major = static_cast<unsigned char>(text[version_at]);
  const int minor = static_cast<unsigned char>(text[version_at + 1]);
  if (major < 1 || major > 3 || minor != 0)
    corrupt(file, "the format's version is ", major, ".", minor, "; 1.0, 2.0 and 3.0 can be read.");
  const std::size_t length_at = version_at + 2;
  const std::size_t begin = length_at + (major == 1 ? 2 : 4);
  if (text.size() < begin) corrupt(file, "the file has only ", text.size(), " bytes: it is cut.");
  const std::size_t size = major == 1 ? read_little_endian<std::uint16_t>(bytes.subspan(length_at))
                                      : read_little_endian<std::uint32_t>(bytes.subspan(length_at));
  if (size > text.size() - begin)
    corrupt(file, "the header should have ", size, " bytes, but only ", text.size() - begin,
            " follow: it is cut.");
  return {begin, size};
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "(";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + (shape.size() == 1 ? ",)" : ")");
}

/// All that comes before the elements, padded as NumPy does.
std::string make_header(std::string_view type, DType dtype, const std::vector<std::int64_t>& shape) {
  std::string text = concat("{'descr': '", size_of(dtype) == 1 ? '|' : '<', type,
                            "', 'fortran_order': False, 'shape': ", shape_text(shape), ", }");
  if (!shape.empty()) text.append(kGrowthDigits - std::to_string(shape[0]).size(), ' ');
  const std::size_t before = kMagic.size() + 4 + text.size() + 1;
  text.append(kAlignment - before % kAlignment, ' ');
  text += '\n';
  std::string header(kMagic);
  header.append("\x01\x00", 2);
  append_little_endian(header, static_cast<std::uint16_t>(text.size()));
  return header + text;
}

/// Copies one element of `size` bytes made of numbers of `unit` bytes, reversing each number.
void copy_reversed(const std::byte* from, std::byte* to, std::size_t size, std::size_t unit) {
  for (std::size_t i = 0; i < size; i += unit) std::reverse_copy(from + i, from + i + unit, to + i);
}

}  // namespace

NpyArray parse_npy(std::span<const std::byte> bytes, std::string_view file) {
  const HeaderPlace header = find_header(bytes, file);
  NpyArray array = HeaderParser(as_text(bytes.subspan(header.begin, header.size)), file).parse();
  array.bytes = bytes.subspan(header.begin + header.size);
  const auto expected = byte_count(array.shape, array.dtype);
  if (!expected) corrupt(file, "the shape ", to_string(array.shape), " is too large.");
  if (static_cast<std::uint64_t>(*expected) != array.bytes.size())
    corrupt(file, "an array of type ", name_of(array.dtype), " and shape ", to_string(array.shape), " takes ",
            *expected, " bytes, but ", array.bytes.size(), " follow the header",
            static_cast<std::uint64_t>(*expected) > array.bytes.size() ? ": the file is cut." : ".");
  return array;
}

NpyArray read_npy(const std::filesystem::path& path) {
  auto map = files::Map::open(path);
  NpyArray array = parse_npy(map->bytes(), path.string());
  array.map = std::move(map);
  return array;
}

void copy_row_major(const NpyArray& array, std::span<std::byte> out) {
  require(out.size() == array.bytes.size(), ErrorCode::kInvalidArgument, "copy_row_major", "the array has ",
          array.bytes.size(), " bytes, the place for it ", out.size(), ".");
  const std::size_t size = size_of(array.dtype);
  const bool complex = array.dtype == DType::kC64 || array.dtype == DType::kC128;
  const std::size_t unit = array.big_endian ? (complex ? size / 2 : size) : 1;
  if (!array.fortran_order && unit == 1) {
    std::copy(array.bytes.begin(), array.bytes.end(), out.begin());
    return;
  }
  // Walks `out` in its order; `from` follows through the file by each dimension's stride there.
  const std::size_t dimensions = array.shape.size();
  std::vector<std::size_t> strides(dimensions);
  std::size_t stride = size;
  for (std::size_t i = 0; i < dimensions; ++i) {
    const std::size_t d = array.fortran_order ? i : dimensions - 1 - i;
    strides[d] = stride;
    stride *= static_cast<std::size_t>(array.shape[d]);
  }
  std::vector<std::int64_t> index(dimensions, 0);
  const std::byte* from = array.bytes.data();
  for (std::size_t at = 0; at < out.size(); at += size) {
    if (unit == 1) {
      std::copy_n(from, size, out.data() + at);
    } else {
      copy_reversed(from, out.data() + at, size, unit);
    }
    for (std::size_t d = dimensions; d-- > 0;) {
      from += strides[d];
      if (++index[d] < array.shape[d]) break;
      from -= strides[d] * static_cast<std::size_t>(array.shape[d]);
      index[d] = 0;
    }
  }
}

void write_npy(const std::filesystem::path& path, DType dtype, const std::vector<std::int64_t>& shape,
               std::span<const std::byte> bytes) {
  const auto* type =
      std::find_if(kTypes.begin(), kTypes.end(), [&](const auto& known) { return known.dtype == dtype; });
  require(type != kTypes.end(), ErrorCode::kInvalidArgument, kWrite, "'", path.string(),
          "': NumPy has no type ", name_of(dtype), ". Convert the array to F32 first.");
  require(shape.size() <= kMostDimensions, ErrorCode::kInvalidArgument, kWrite, "'", path.string(),
          "': the array has ", shape.size(), " dimensions; NumPy takes at most ", kMostDimensions, ".");
  const auto expected = byte_count(shape, dtype);
  require(expected && static_cast<std::uint64_t>(*expected) == bytes.size(), ErrorCode::kInvalidArgument,
          kWrite, "'", path.string(), "': an array of type ", name_of(dtype), " and shape ", to_string(shape),
          " does not take ", bytes.size(), " bytes.");
  files::AtomicFile file(path);
  file.write(make_header(type->name, dtype, shape));
  file.write(bytes);
  file.commit();
}

}  // namespace hasten::formats

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>

#include <hasten/base/error.h>
#include <hasten/formats/safetensors.h>

#include "formats/bytes.h"

namespace hasten::formats {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kRead = "read_safetensors";
constexpr std::string_view kWrite = "write_safetensors";
constexpr std::string_view kMetadata = "__metadata__";
constexpr std::size_t kLengthBytes = 8;
constexpr std::uint64_t kLongestHeader = 100'000'000;  // the format's own limit
constexpr int kDeepestHeader = 8;  // three are needed; some room for keys of later versions

template <class... Parts>
[[noreturn]] void corrupt(std::string_view file, const Parts&... parts) {
  constexpr std::size_t kLongestMessage =
      1000;  // names and values in it come from the file, and may be of any length
  std::string message = concat(parts...);
  if (message.size() > kLongestMessage) message.replace(kLongestMessage, std::string::npos, "...");
  fail(ErrorCode::kCorruptData, kRead, "'", file, "': ", message);
}

/// The header's text, after its length has been checked against the file.
std::string_view header_text(std::span<const std::byte> bytes, std::string_view file) {
  if (bytes.size() < kLengthBytes)
    corrupt(file, "the file has ", bytes.size(), " bytes, and the header's length alone takes 8. Is it cut?");
  const auto length = read_little_endian<std::uint64_t>(bytes);
  if (length > bytes.size() - kLengthBytes)
    corrupt(file, "the header should have ", length, " bytes, but only ", bytes.size() - kLengthBytes,
            " follow its length. The file is cut or is no safetensors file.");
  if (length > kLongestHeader)
    corrupt(file, "the header has ", length, " bytes, more than the ", kLongestHeader,
            " that the format allows.");
  const std::string_view text = as_text(bytes.subspan(kLengthBytes, length));
  if (text.empty() || text.front() != '{') corrupt(file, "the header does not begin with '{'.");
  // The JSON parser takes a NUL as the end of its input; the format pads with spaces only.
  if (const auto nul = text.find('\0'); nul != std::string_view::npos)
    corrupt(file, "the header holds a NUL byte at offset ", kLengthBytes + nul, ".");
  return text;
}

/// Refuses what a plain parse would take in silence: names that occur twice in one object, and deep nesting.
class HeaderCheck : public nlohmann::json_sax<Json> {
 public:
  explicit HeaderCheck(std::string_view file) : file_(file) {}

  bool start_object(std::size_t) override {
    keys_.emplace_back();
    return enter();
  }
  bool key(std::string& key) override {
    if (!keys_.back().insert(key).second) corrupt(file_, "the header names '", key, "' twice.");
    return true;
  }
  bool end_object() override {
    keys_.pop_back();
    return leave();
  }
  bool start_array(std::size_t) override { return enter(); }
  bool end_array() override { return leave(); }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(Json::number_integer_t) override { return true; }
  bool number_unsigned(Json::number_unsigned_t) override { return true; }
  bool number_float(Json::number_float_t, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(Json::binary_t&) override { return true; }

  bool parse_error(std::size_t, const std::string&, const Json::exception& error) override {
    corrupt(file_, "the header is not valid JSON: ", error.what(), ".");
  }

 private:
  bool enter() {
    if (++depth_ > kDeepestHeader)
      corrupt(file_, "the header nests deeper than ", kDeepestHeader, " levels.");
    return true;
  }
  bool leave() {
    --depth_;
    return true;
  }

  std::string_view file_;
  std::vector<std::set<std::string>> keys_;  // of each object that is open
  int depth_ = 0;
};

/// Parses the header in two passes; the library's parse with a callback would do it in one, in quadratic
/// time.
Json parse_header(std::string_view text, std::string_view file) {
  HeaderCheck check(file);
  Json::sax_parse(text, &check);
  return Json::parse(text);
}

const Json& member(const Json& object, const char* key, std::string_view tensor, std::string_view file) {
  const auto found = object.find(key);
  if (found == object.end()) corrupt(file, "tensor '", tensor, "' has no '", key, "'.");
  return *found;
}

/// A JSON number as a size: whole, not negative, and within int64.
std::int64_t size_from(const Json& number, const char* key, std::string_view tensor, std::string_view file) {
  if (!number.is_number_unsigned() || number.get<std::uint64_t>() > INT64_MAX)
    corrupt(file, "'", key, "' of tensor '", tensor, "' holds ", number.dump(), ", which is no size.");
  return number.get<std::int64_t>();
}

DType dtype_from(const Json& name, std::string_view tensor, std::string_view file) {
  if (name.is_string())
    if (const auto dtype = dtype_from_safetensors(name.get_ref<const std::string&>())) return *dtype;
  corrupt(file, "tensor '", tensor, "' has the type ", name.dump(), ", which this library cannot read.");
}

/// One tensor of the header; its bytes lie in `data`, the part of the file after the header.
TensorView tensor_from(const std::string& name, const Json& entry, std::span<const std::byte> data,
                       std::string_view file) {
  if (!entry.is_object()) corrupt(file, "tensor '", name, "' is described by ", entry.dump(), ".");
  TensorView tensor{.name = name, .dtype = dtype_from(member(entry, "dtype", name, file), name, file)};
  const Json& shape = member(entry, "shape", name, file);
  if (!shape.is_array()) corrupt(file, "tensor '", name, "' has the shape ", shape.dump(), ".");
  for (const Json& size : shape) tensor.shape.push_back(size_from(size, "shape", name, file));
  const Json& offsets = member(entry, "data_offsets", name, file);
  if (!offsets.is_array() || offsets.size() != 2)
    corrupt(file, "tensor '", name, "' has the data_offsets ", offsets.dump(),
            "; two numbers were expected.");
  const std::int64_t begin = size_from(offsets[0], "data_offsets", name, file);
  const std::int64_t end = size_from(offsets[1], "data_offsets", name, file);
  if (begin > end || static_cast<std::uint64_t>(end) > data.size())
    corrupt(file, "tensor '", name, "' lies at [", begin, ", ", end, "], but the file holds ", data.size(),
            " bytes of tensors.");
  const auto expected = byte_count(tensor.shape, tensor.dtype);
  if (!expected)
    corrupt(file, "the shape ", to_string(tensor.shape), " of tensor '", name, "' is too large.");
  if (end - begin != *expected)
    corrupt(file, "tensor '", name, "' of type ", name_of(tensor.dtype), " and shape ",
            to_string(tensor.shape), " needs ", *expected, " bytes, but lies at [", begin, ", ", end, "].");
  tensor.bytes = data.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
  return tensor;
}

/// Sorts the tensors by place and checks that they cover `data` exactly.
void sort_and_check_coverage(std::vector<TensorView>& tensors, std::span<const std::byte> data,
                             std::string_view file) {
  const auto begin = [&](const TensorView& tensor) {
    return static_cast<std::size_t>(tensor.bytes.data() - data.data());
  };
  std::sort(tensors.begin(), tensors.end(), [&](const TensorView& a, const TensorView& b) {
    return std::tuple(begin(a), a.bytes.size(), std::string_view(a.name)) <
           std::tuple(begin(b), b.bytes.size(), std::string_view(b.name));
  });
  std::size_t covered = 0;
  for (const TensorView& tensor : tensors) {
    if (begin(tensor) != covered)
      corrupt(file, "tensor '", tensor.name, "' begins at ", begin(tensor),
              ", but the bytes before it end at ", covered,
              begin(tensor) < covered ? ": they overlap." : ": there is a gap.");
    covered += tensor.bytes.size();
  }
  if (covered != data.size())
    corrupt(file, "the tensors take ", covered, " bytes, but ", data.size(), " follow the header.");
}

std::map<std::string, std::string> metadata_from(const Json& object, std::string_view file) {
  if (!object.is_object()) corrupt(file, "'__metadata__' is no object.");
  std::map<std::string, std::string> metadata;
  for (const auto& [key, value] : object.items()) {
    if (!value.is_string())
      corrupt(file, "the metadata '", key, "' is ", value.dump(), "; a text was expected.");
    metadata.emplace(key, value.get<std::string>());
  }
  return metadata;
}

void check_for_writing(std::span<const TensorView> tensors, std::string_view file) {
  std::set<std::string_view> names;
  for (const TensorView& tensor : tensors) {
    const auto invalid = [&](const auto&... parts) {
      fail(ErrorCode::kInvalidArgument, kWrite, "'", file, "': tensor '", tensor.name, "' ", parts...);
    };
    if (!names.insert(tensor.name).second) invalid("is given twice.");
    if (tensor.name == kMetadata) invalid("has the name that the format keeps for metadata.");
    if (!dtype_from_safetensors(name_of(tensor.dtype)))
      invalid("has the type ", name_of(tensor.dtype), ", which the format lacks.");
    const auto expected = byte_count(tensor.shape, tensor.dtype);
    if (!expected || static_cast<std::uint64_t>(*expected) != tensor.bytes.size())
      invalid("of type ", name_of(tensor.dtype), " and shape ", to_string(tensor.shape), " needs ",
              expected ? std::to_string(*expected) : "too many", " bytes; ", tensor.bytes.size(),
              " were given.");
  }
}

/// `text` as JSON writes it, quotes included.
std::string quoted(const std::string& text, std::string_view file) {
  try {
    return Json(text).dump();
  } catch (const Json::exception&) {
    fail(ErrorCode::kInvalidArgument, kWrite, "'", file, "': the name or metadata text '", text,
         "' is no UTF-8.");
  }
}

/// The JSON header of tensors that lie in the given order, padded so that the first byte after it is aligned.
/// Put together by hand: members in this order, without blanks, as the Python package writes them.
std::string make_header(const std::vector<const TensorView*>& tensors,
                        const std::map<std::string, std::string>& metadata, std::string_view file) {
  std::string text = "{";
  if (!metadata.empty()) {
    text += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) text += quoted(key, file) + ':' + quoted(value, file) + ',';
    text.back() = '}';
    text += ',';
  }
  std::size_t begin = 0;
  for (const TensorView* tensor : tensors) {
    const std::size_t end = begin + tensor->bytes.size();
    text +=
        concat(quoted(tensor->name, file), ":{\"dtype\":\"", name_of(tensor->dtype),
               "\",\"shape\":", Json(tensor->shape).dump(), ",\"data_offsets\":[", begin, ',', end, "]},");
    begin = end;
  }
  if (text.back() == ',') text.pop_back();
  text += '}';
  text.append((kLengthBytes - text.size() % kLengthBytes) % kLengthBytes, ' ');
  return text;
}

}  // namespace

SafetensorsContents parse_safetensors(std::span<const std::byte> bytes, std::string_view file) {
  const std::string_view text = header_text(bytes, file);
  const std::span<const std::byte> data = bytes.subspan(kLengthBytes + text.size());
  const Json header = parse_header(text, file);
  SafetensorsContents contents;
  for (const auto& [name, entry] : header.items()) {
    if (name == kMetadata) {
      contents.metadata = metadata_from(entry, file);
    } else {
      contents.tensors.push_back(tensor_from(name, entry, data, file));
    }
  }
  sort_and_check_coverage(contents.tensors, data, file);
  return contents;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : map_(files::Map::open(path)), contents_(parse_safetensors(map_->bytes(), path.string())) {
  for (std::size_t i = 0; i < contents_.tensors.size(); ++i) index_.emplace(contents_.tensors[i].name, i);
}

const TensorView* SafetensorsFile::find(std::string_view name) const noexcept {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &contents_.tensors[found->second];
}

const TensorView& SafetensorsFile::at(std::string_view name) const {
  const TensorView* tensor = find(name);
  require(tensor != nullptr, ErrorCode::kNotFound, kRead, "'", map_->path().string(), "' holds no tensor '",
          name, "' among its ", contents_.tensors.size(), ".");
  return *tensor;
}

void write_safetensors(const std::filesystem::path& path, std::span<const TensorView> tensors,
                       const std::map<std::string, std::string>& metadata) {
  check_for_writing(tensors, path.string());
  std::vector<const TensorView*> ordered;
  for (const TensorView& tensor : tensors) ordered.push_back(&tensor);
  std::sort(ordered.begin(), ordered.end(), [](const TensorView* a, const TensorView* b) {
    return std::tuple(b->dtype, std::string_view(a->name)) < std::tuple(a->dtype, std::string_view(b->name));
  });
  const std::string header = make_header(ordered, metadata, path.string());
  std::string length;
  append_little_endian(length, static_cast<std::uint64_t>(header.size()));
  files::AtomicFile file(path);
  file.write(length);
  file.write(header);
  for (const TensorView* tensor : ordered) file.write(tensor->bytes);
  file.commit();
}

}  // namespace hasten::formats

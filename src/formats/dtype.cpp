#include <algorithm>
#include <array>

#include <hasten/formats/dtype.h>

namespace hasten::formats {
namespace {

struct Entry {
  std::size_t size;
  std::string_view name;
};

// In the order of the enumerators.
constexpr std::array<Entry, 20> kEntries{{
    {1, "BOOL"},    {1, "U8"},          {1, "I8"},          {1, "F8_E5M2"}, {1, "F8_E4M3"},
    {1, "F8_E8M0"}, {1, "F8_E4M3FNUZ"}, {1, "F8_E5M2FNUZ"}, {2, "I16"},     {2, "U16"},
    {2, "F16"},     {2, "BF16"},        {4, "I32"},         {4, "U32"},     {4, "F32"},
    {8, "C64"},     {8, "F64"},         {8, "I64"},         {8, "U64"},     {16, "C128"},
}};
static_assert(kEntries.size() == static_cast<std::size_t>(DType::kC128) + 1);

}  // namespace

std::size_t size_of(DType dtype) noexcept {
  return kEntries[static_cast<std::size_t>(dtype)].size;
}

std::string_view name_of(DType dtype) noexcept {
  return kEntries[static_cast<std::size_t>(dtype)].name;
}

std::optional<DType> dtype_from_safetensors(std::string_view name) noexcept {
  const auto* end = kEntries.end() - 1;  // the last is not a type of safetensors
  const auto* found =
      std::find_if(kEntries.begin(), end, [&](const Entry& entry) { return entry.name == name; });
  if (found == end) return std::nullopt;
  return static_cast<DType>(found - kEntries.begin());
}

std::optional<std::int64_t> byte_count(const std::vector<std::int64_t>& shape, DType dtype) noexcept {
  auto product = static_cast<std::int64_t>(size_of(dtype));
  bool empty = false;
  for (const std::int64_t size : shape) {
    if (size < 0) return std::nullopt;
    if (size == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(product, size, &product)) {
      return std::nullopt;
    }
  }
  return empty ? 0 : product;
}

std::string to_string(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (const std::int64_t size : shape) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(size);
  }
  return text + "]";
}

}  // namespace hasten::formats

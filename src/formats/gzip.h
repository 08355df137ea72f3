#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace hasten::formats {

/// A byte of deflate's compressed data gives at most so many bytes (zlib.net/zlib_tech.html).
inline constexpr std::size_t kGzipHighestRatio = 1032;

/// Whether the bytes begin with gzip's mark.
[[nodiscard]] bool is_gzip(std::span<const std::byte> bytes) noexcept;

/// Decompresses gzip data (RFC 1952) as far as is asked for. `compressed` must outlive the reader.
class GzipReader {
 public:
  GzipReader(std::span<const std::byte> compressed, std::string_view file);
  ~GzipReader();
  GzipReader(const GzipReader&) = delete;
  GzipReader& operator=(const GzipReader&) = delete;

  /// Fills `out` and returns how many bytes that were: fewer only at the data's end. Throws `kCorruptData`,
  /// naming the file, when the data is damaged or cut; a damaged checksum shows once the end is reached.
  std::size_t read(std::span<std::byte> out);

 private:
  struct Stream;
  std::unique_ptr<Stream> stream_;
  std::span<const std::byte> rest_;
  std::string file_;
  bool ended_ = false;
};

}  // namespace hasten::formats

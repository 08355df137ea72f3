#include "formats/gzip.h"

#include <algorithm>
#include <zlib.h>

#include <hasten/base/error.h>

namespace hasten::formats {
namespace {

constexpr int kGzipOnly = 15 + 16;                   // the largest window, and gzip's frame
constexpr std::size_t kTurn = std::size_t{1} << 30;  // zlib counts in 32 bits

}  // namespace

struct GzipReader::Stream {
  z_stream z{};
};

bool is_gzip(std::span<const std::byte> bytes) noexcept {
  return bytes.size() >= 2 && bytes[0] == std::byte{0x1f} && bytes[1] == std::byte{0x8b};
}

GzipReader::GzipReader(std::span<const std::byte> compressed, std::string_view file)
    : stream_(std::make_unique<Stream>()), rest_(compressed), file_(file) {
  require(inflateInit2(&stream_->z, kGzipOnly) == Z_OK, ErrorCode::kSystem, "read_gzip", "'", file_,
          "': there is no memory to decompress it.");
}

GzipReader::~GzipReader() {
  inflateEnd(&stream_->z);
}

std::size_t GzipReader::read(std::span<std::byte> out) {
  z_stream& z = stream_->z;
  std::size_t done = 0;
  while (done < out.size() && !ended_) {
    const std::size_t input = std::min(rest_.size(), kTurn);
    const std::size_t room = std::min(out.size() - done, kTurn);
    // zlib does not write to its input; its interface is older than const.
    z.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(rest_.data()));
    z.avail_in = static_cast<uInt>(input);
    z.next_out = reinterpret_cast<Bytef*>(out.data() + done);
    z.avail_out = static_cast<uInt>(room);
    const int result = inflate(&z, Z_NO_FLUSH);
    rest_ = rest_.subspan(input - z.avail_in);
    done += room - z.avail_out;
    if (result == Z_STREAM_END) {
      // A file may be several compressed files after one another, and means their contents joined.
      ended_ = rest_.empty();
      if (!ended_) inflateReset(&z);
    } else if (result == Z_BUF_ERROR && rest_.empty()) {
      fail(ErrorCode::kCorruptData, "read_gzip", "'", file_,
           "': the compressed data ends too early: the file is cut.");
    } else if (result != Z_OK) {
      fail(ErrorCode::kCorruptData, "read_gzip", "'", file_, "': the compressed data is damaged (",
           z.msg != nullptr ? z.msg : "unexpected bytes", ").");
    }
  }
  return done;
}

}  // namespace hasten::formats

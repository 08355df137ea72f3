#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

/// Files that are either whole or absent, and read-only memory maps. Errors name the path.
namespace hasten::files {

/// The whole file. Throws `kNotFound` or `kSystem`.
[[nodiscard]] std::string read(const std::filesystem::path& path);

/// Replaces `path` by `content`: written beside it, synced, renamed, the folder synced. After a crash or a
/// full disk the file holds the old content or the new, never a part. Throws `kSystem`.
void write_atomically(const std::filesystem::path& path, std::string_view content);

/// A file being written that appears under its name only at `commit()`. Destroyed before that, it leaves
/// nothing.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// Appends bytes. Throws `kSystem`, naming the path, when the disk is full.
  void write(std::span<const std::byte> bytes);
  void write(std::string_view bytes) { write(std::as_bytes(std::span(bytes.data(), bytes.size()))); }

  /// Syncs, renames to the final name, and syncs the folder.
  void commit();

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_;
  int descriptor_;
};

/// Makes the names just created, renamed or removed in `folder` survive a power cut.
void sync_folder(const std::filesystem::path& folder);

/// A file mapped read-only, shared with whoever holds the pointer.
class Map {
 public:
  /// Throws `kNotFound` or `kSystem`. An empty file gives an empty map.
  static std::shared_ptr<const Map> open(const std::filesystem::path& path);
  ~Map();
  Map(const Map&) = delete;
  Map& operator=(const Map&) = delete;

  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return {data_, size_}; }
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

 private:
  Map(std::filesystem::path path, const std::byte* data, std::size_t size);
  std::filesystem::path path_;
  const std::byte* data_;
  std::size_t size_;
};

}  // namespace hasten::files

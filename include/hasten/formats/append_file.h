#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

namespace hasten::formats {

/// A file that grows at its end, for events and lines that other programs read while they come. What is
/// appended waits in memory until 64 kB have gathered, `flush`, or the destructor, which drops an error. Not
/// thread-safe.
class AppendFile {
 public:
  enum class Start {
    kNew,      ///< the file must not exist yet
    kExisting  ///< go on at the end of the file, made if it does not exist
  };

  /// Makes the file's folder where needed. Throws `kSystem`, naming the file.
  AppendFile(std::filesystem::path path, Start start);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  /// Throws `kSystem` when much has gathered and cannot be written.
  void append(std::string_view bytes);

  /// Hands all bytes to the operating system, so that readers see them. Throws `kSystem`, naming the file; a
  /// later flush goes on at the byte where this one stopped.
  void flush();

  /// Whether nothing waits in memory.
  [[nodiscard]] bool flushed() const noexcept { return waiting_.empty(); }
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
  std::string waiting_;
  int descriptor_;
};

}  // namespace hasten::formats

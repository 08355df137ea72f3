#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace hasten::comm {
class Group;
}

/// Checkpoints as folders that are complete or invisible.
///
/// A checkpoint is written into a hidden folder beside its place. When every rank's files are there and
/// synced, a manifest with their sizes and checksums is added and the folder renamed to its name; older ones
/// are removed only then. Whatever is killed at whatever moment, the folders with a name are whole.
namespace hasten::checkpoint {

/// Writes one checkpoint. All ranks of the group construct it, call `write` for the files they own, and
/// `commit`.
class Writer {
 public:
  /// `folder` is the checkpoint's final place, which must not exist; its parents are made. Leftovers of an
  /// earlier attempt at the same place are removed. Blocks until all ranks are there.
  Writer(comm::Group& group, std::filesystem::path folder);
  /// Removes what was written unless `commit` succeeded.
  ~Writer();
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  /// Has `write` write the file of that name, to the path it is given. Each name is written by one rank. An
  /// exception is kept until `commit`, where all ranks learn of it.
  void write(const std::string& name, const std::function<void(const std::filesystem::path&)>& write);

  /// Makes the checkpoint visible. Every rank must call it; it returns when the folder has its name. If any
  /// rank failed, nothing remains and every rank throws the first rank's error.
  void commit();

 private:
  comm::Group& group_;
  std::filesystem::path folder_;
  std::filesystem::path staging_;
  std::vector<std::string> written_;
  std::string error_;
  bool committed_ = false;
};

/// How far a checkpoint's files are compared with its manifest.
enum class Check {
  kSizes,    ///< all are there, with their sizes
  kContents  ///< their checksums too; reads every file
};

/// A checkpoint that was found, its manifest read and its files compared with it.
class Reader {
 public:
  /// Throws `kNotFound` for a folder that is none, `kCorruptData` naming the file for one that is missing,
  /// cut or altered, `kMismatch` for a format version this library does not know.
  explicit Reader(std::filesystem::path folder, Check check = Check::kContents);

  [[nodiscard]] const std::filesystem::path& folder() const noexcept { return folder_; }
  [[nodiscard]] bool has(const std::string& name) const { return files_.contains(name); }
  /// The path of a file. Throws `kNotFound` when the checkpoint has none of that name.
  [[nodiscard]] std::filesystem::path path(const std::string& name) const;

 private:
  std::filesystem::path folder_;
  std::set<std::string> files_;
};

/// The folder `checkpoint_N` for the next automatic checkpoint below `parent`: one more than the highest
/// there.
[[nodiscard]] std::filesystem::path next_folder(const std::filesystem::path& parent);

/// The numbers of the checkpoints below `parent`, rising.
[[nodiscard]] std::vector<std::int64_t> numbers(const std::filesystem::path& parent);

/// The folder of that number.
[[nodiscard]] std::filesystem::path numbered_folder(const std::filesystem::path& parent, std::int64_t number);

/// The newest good checkpoint below `parent` with a number over `after`. Bad ones, and ones whose writing was
/// cut short, are passed over with a warning that says why.
[[nodiscard]] std::optional<Reader> newest(const std::filesystem::path& parent, std::int64_t after = -1);

/// Removes the oldest checkpoints until `limit` remain.
void keep_newest(const std::filesystem::path& parent, std::size_t limit);

}  // namespace hasten::checkpoint

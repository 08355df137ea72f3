#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include <hasten/base/crc.h>
#include <hasten/base/error.h>
#include <hasten/base/files.h>
#include <hasten/base/log.h>
#include <hasten/base/version.h>
#include <hasten/checkpoint/folder.h>
#include <hasten/comm/group.h>

namespace hasten::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kManifest = "manifest.json";
constexpr const char* kFormat = "hasten checkpoint";
constexpr int kFormatVersion = 1;
constexpr std::string_view kPrefix = "checkpoint_";
constexpr std::string_view kStagingPrefix = ".partial-";
constexpr std::string_view kRemovedPrefix = ".removed-";

struct Entry {
  std::uint64_t bytes;
  std::uint32_t crc32c;
};

Entry measure(const fs::path& path) {
  const auto map = files::Map::open(path);
  return {map->bytes().size(), crc32c(map->bytes())};
}

/// The number in "checkpoint_12", or nothing.
std::optional<std::int64_t> number_of(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  std::int64_t number = 0;
  const char* end = name.data() + name.size();
  const auto [stop, status] = std::from_chars(name.data() + kPrefix.size(), end, number);
  if (status != std::errc{} || stop != end || number < 0) return std::nullopt;
  return number;
}

json parse(const fs::path& path) {
  try {
    return json::parse(files::read(path));
  } catch (const json::exception& error) {
    fail(ErrorCode::kCorruptData, "load_state", "'", path.string(), "' is no JSON: ", error.what(), ".");
  }
}

/// Compares the files of a checkpoint with its manifest and returns their names.
std::set<std::string> check_files(const fs::path& folder, const json& manifest, Check check) {
  require(manifest.value("format", "") == kFormat, ErrorCode::kCorruptData, "load_state", "'",
          (folder / kManifest).string(), "' is not the manifest of a checkpoint.");
  require(manifest.value("version", 0) == kFormatVersion, ErrorCode::kMismatch, "load_state", "'",
          folder.string(), "' is of format version ", manifest.value("version", 0),
          ", but this library reads ", kFormatVersion, ". Load it with the version of hasten that wrote it (",
          manifest.value("hasten", "?"), ").");
  std::set<std::string> names;
  for (const auto& [name, recorded] : manifest.at("files").items()) {
    const fs::path path = folder / name;
    require(fs::is_regular_file(path), ErrorCode::kCorruptData, "load_state", "'", path.string(),
            "' is missing, though the checkpoint's manifest lists it.");
    const auto bytes = recorded.at("bytes").get<std::uint64_t>();
    require(fs::file_size(path) == bytes, ErrorCode::kCorruptData, "load_state", "'", path.string(), "' has ",
            fs::file_size(path), " bytes, but was written with ", bytes, ".");
    require(check == Check::kSizes || measure(path).crc32c == recorded.at("crc32c").get<std::uint32_t>(),
            ErrorCode::kCorruptData, "load_state", "'", path.string(),
            "' was altered after it was written: its checksum differs.");
    names.insert(name);
  }
  return names;
}

}  // namespace

Writer::Writer(comm::Group& group, fs::path folder)
    : group_(group),
      folder_(fs::absolute(folder).lexically_normal()),
      staging_(folder_.parent_path() / (std::string(kStagingPrefix) + folder_.filename().string())) {
  std::string problem;
  if (group_.rank() == 0) {
    try {
      require(!fs::exists(folder_), ErrorCode::kFailedPrecondition, "save_state", "'", folder_.string(),
              "' exists already. Choose another folder or remove it.");
      fs::remove_all(staging_);
      fs::create_directories(staging_);
    } catch (const std::exception& error) {
      problem = error.what();
    }
  }
  problem = group_.broadcast_bytes(problem, 0);
  if (!problem.empty()) fail(ErrorCode::kSystem, "save_state", problem);
}

Writer::~Writer() {
  if (committed_ || group_.rank() != 0) return;
  std::error_code ignored;
  fs::remove_all(staging_, ignored);
}

void Writer::write(const std::string& name, const std::function<void(const fs::path&)>& write) {
  if (!error_.empty()) return;
  try {
    write(staging_ / name);
    written_.push_back(name);
  } catch (const std::exception& error) {
    error_ = concat("rank ", group_.rank(), " could not write '", name, "': ", error.what());
  }
}

void Writer::commit() {
  json mine{{"error", error_}, {"files", json::object()}};
  if (error_.empty()) {
    for (const std::string& name : written_) {
      const Entry entry = measure(staging_ / name);
      mine["files"][name] = {{"bytes", entry.bytes}, {"crc32c", entry.crc32c}};
    }
  }
  json files = json::object();
  for (const std::string& text : group_.all_gather_bytes(mine.dump())) {
    const json theirs = json::parse(text);
    const auto error = theirs.at("error").get<std::string>();
    if (!error.empty()) fail(ErrorCode::kSystem, "save_state", error);
    files.update(theirs.at("files"));
  }
  std::string problem;
  if (group_.rank() == 0) {
    try {
      const json manifest{{"format", kFormat},
                          {"version", kFormatVersion},
                          {"hasten", version()},
                          {"processes", group_.size()},
                          {"files", files}};
      files::write_atomically(staging_ / kManifest, manifest.dump(2) + "\n");
      fs::rename(staging_, folder_);
      files::sync_folder(folder_.parent_path());
    } catch (const std::exception& error) {
      problem = error.what();
    }
  }
  problem = group_.broadcast_bytes(problem, 0);
  if (!problem.empty()) fail(ErrorCode::kSystem, "save_state", problem);
  committed_ = true;
}

Reader::Reader(fs::path folder, Check check) : folder_(std::move(folder)) {
  require(fs::is_directory(folder_), ErrorCode::kNotFound, "load_state", "there is no checkpoint '",
          folder_.string(), "'.");
  require(fs::exists(folder_ / kManifest), ErrorCode::kCorruptData, "load_state", "'", folder_.string(),
          "' has no ", kManifest, ": it is no checkpoint, or an incomplete one.");
  try {
    files_ = check_files(folder_, parse(folder_ / kManifest), check);
  } catch (const json::exception& error) {
    fail(ErrorCode::kCorruptData, "load_state", "'", (folder_ / kManifest).string(),
         "' is no manifest: ", error.what(), ".");
  }
}

fs::path Reader::path(const std::string& name) const {
  require(has(name), ErrorCode::kNotFound, "load_state", "the checkpoint '", folder_.string(), "' has no '",
          name, "'. It was saved by a run with other parts prepared.");
  return folder_ / name;
}

std::vector<std::int64_t> numbers(const fs::path& parent) {
  std::vector<std::int64_t> found;
  if (fs::is_directory(parent))
    for (const auto& entry : fs::directory_iterator(parent))
      if (const auto number = number_of(entry.path().filename().string())) found.push_back(*number);
  std::ranges::sort(found);
  return found;
}

fs::path numbered_folder(const fs::path& parent, std::int64_t number) {
  return parent / (std::string(kPrefix) + std::to_string(number));
}

fs::path next_folder(const fs::path& parent) {
  const auto taken = numbers(parent);
  return numbered_folder(parent, taken.empty() ? 0 : taken.back() + 1);
}

std::optional<Reader> newest(const fs::path& parent, std::int64_t after) {
  if (fs::is_directory(parent))
    for (const auto& entry : fs::directory_iterator(parent)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with(kStagingPrefix))
        log::warning(concat("checkpoint '", name.substr(kStagingPrefix.size()), "' in '", parent.string(),
                            "' is incomplete, since its writing was cut short. It is passed over."));
    }
  auto candidates = numbers(parent);
  std::ranges::reverse(candidates);
  for (const std::int64_t number : candidates) {
    if (number <= after) break;
    try {
      return Reader(numbered_folder(parent, number));
    } catch (const std::exception& error) {
      log::warning(concat("a checkpoint is passed over: ", error.what()));
    }
  }
  return std::nullopt;
}

void keep_newest(const fs::path& parent, std::size_t limit) {
  const auto present = numbers(parent);
  // Renamed first: a folder that is half removed must not have a checkpoint's name.
  for (std::size_t i = 0; i + limit < present.size(); ++i) {
    const fs::path folder = numbered_folder(parent, present[i]);
    fs::rename(folder, parent / (std::string(kRemovedPrefix) + folder.filename().string()));
  }
  std::vector<fs::path> removed;
  for (const auto& entry : fs::directory_iterator(parent))
    if (entry.path().filename().string().starts_with(kRemovedPrefix)) removed.push_back(entry.path());
  for (const fs::path& folder : removed) fs::remove_all(folder);
}

}  // namespace hasten::checkpoint

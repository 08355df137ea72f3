#include <algorithm>
#include <chrono>
#include <cmath>

#include <hasten/base/error.h>
#include <hasten/base/files.h>
#include <hasten/base/log.h>
#include <hasten/formats/append_file.h>

#include "track/json.h"
#include "track/sinks.h"

namespace hasten::track {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr Clock::duration kLongestWait = std::chrono::seconds(1);

/// Removes a last line that was cut when an earlier run was killed: its rest and the next line would make one
/// line that no reader takes.
const std::filesystem::path& without_cut_line(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) return path;
  std::size_t size = 0;
  std::size_t whole = 0;
  {
    const auto map = files::Map::open(path);
    const auto bytes = map->bytes();
    size = bytes.size();
    const auto last = std::find(bytes.rbegin(), bytes.rend(), std::byte{'\n'});
    whole = static_cast<std::size_t>(bytes.rend() - last);
  }
  if (whole == size) return path;
  log::warning(
      concat("'", path.string(), "' ended inside a line, which was removed (", size - whole, " bytes)"));
  std::error_code failure;
  std::filesystem::resize_file(path, whole, failure);
  if (failure) fail_system(failure.value(), "jsonl", "cannot shorten '" + path.string() + "'");
  return path;
}

class JsonLinesTracker : public Tracker {
 public:
  explicit JsonLinesTracker(const std::filesystem::path& path)
      : file_(without_cut_line(path), formats::AppendFile::Start::kExisting), last_flush_(Clock::now()) {}

  [[nodiscard]] std::string_view name() const override { return "jsonl"; }

  void store_config(const Config& config) override {
    Json settings = Json::object();
    for (const auto& [key, value] : flatten(config)) settings[key] = to_json(value);
    file_.append(to_line({{"time", time()}, {"config", settings}}) + '\n');
    flush();
  }

  void log(const std::map<std::string, double>& values, std::int64_t step) override {
    Json line{{"step", step}, {"time", time()}};
    for (const auto& [key, value] : values) {
      require(key != "step" && key != "time", ErrorCode::kInvalidArgument, "jsonl", "a value is named '", key,
              "', as the line's own member is. Give it another name.");
      line[key] = to_json(value);
    }
    file_.append(to_line(line) + '\n');
    if (Clock::now() - last_flush_ >= kLongestWait) flush();
  }

  void flush() override {
    file_.flush();
    last_flush_ = Clock::now();
  }

 private:
  /// Milliseconds are enough, and shorter lines.
  static double time() { return std::round(wall_time() * 1e3) / 1e3; }

  formats::AppendFile file_;
  Clock::time_point last_flush_;
};

}  // namespace

std::unique_ptr<Tracker> make_jsonl_tracker(const std::filesystem::path& folder) {
  return std::make_unique<JsonLinesTracker>(folder / "metrics.jsonl");
}

}  // namespace hasten::track

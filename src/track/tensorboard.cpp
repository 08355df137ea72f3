#include <hasten/formats/event_file.h>

#include "track/sinks.h"

namespace hasten::track {
namespace {

/// A cell of a Markdown table: bars escaped, on one line.
std::string cell(std::string_view text) {
  std::string out;
  for (const char letter : text) {
    if (letter == '|') out += '\\';
    out += letter == '\n' ? ' ' : letter;
  }
  return out;
}

class TensorBoardTracker : public Tracker {
 public:
  explicit TensorBoardTracker(const std::filesystem::path& folder) : writer_(folder, wall_time()) {}

  [[nodiscard]] std::string_view name() const override { return "tensorboard"; }

  void store_config(const Config& config) override {
    std::string table = "| setting | value |\n| --- | --- |\n";
    for (const auto& [key, value] : flatten(config))
      table += "| " + cell(key) + " | " + cell(to_text(value)) + " |\n";
    writer_.text("config", table, 0, wall_time());
    writer_.flush();
  }

  void log(const std::map<std::string, double>& values, std::int64_t step) override {
    const double now = wall_time();
    for (const auto& [tag, value] : values) writer_.scalar(tag, value, step, now);
  }

  void flush() override { writer_.flush(); }

 private:
  formats::EventWriter writer_;
};

}  // namespace

std::unique_ptr<Tracker> make_tensorboard_tracker(const std::filesystem::path& folder) {
  return std::make_unique<TensorBoardTracker>(folder);
}

}  // namespace hasten::track

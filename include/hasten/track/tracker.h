#pragma once

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace hasten::track {

/// A setting of a run: a truth value, a number, a text, a list, or a map of such values.
/// Converts from all of these: `{{"lr", 0.1}, {"layers", ConfigValue::List{1, 2}}}`.
class ConfigValue {
 public:
  using List = std::vector<ConfigValue>;
  using Map = std::map<std::string, ConfigValue>;
  using Variant = std::variant<bool, std::int64_t, double, std::string, List, Map>;

  ConfigValue(bool value) : value_(value) {}
  template <std::integral Number>
    requires(!std::same_as<Number, bool>)
  ConfigValue(Number value) : value_(static_cast<std::int64_t>(value)) {}
  ConfigValue(double value) : value_(value) {}
  ConfigValue(const char* value) : value_(std::string(value)) {}
  ConfigValue(std::string_view value) : value_(std::string(value)) {}
  ConfigValue(std::string value) : value_(std::move(value)) {}
  ConfigValue(List value) : value_(std::move(value)) {}
  ConfigValue(Map value) : value_(std::move(value)) {}

  [[nodiscard]] const Variant& value() const noexcept { return value_; }

 private:
  Variant value_;
};

/// The settings of a run by name.
using Config = ConfigValue::Map;

/// The value as people read it: texts as they are, lists and maps as JSON.
[[nodiscard]] std::string to_text(const ConfigValue& value);

/// The settings without nesting: `{"opt": {"name": "adam"}}` becomes `{"opt.name": "adam"}`, lists and empty
/// maps become their text. Throws `kInvalidArgument` when two settings get the same name.
[[nodiscard]] Config flatten(const Config& config);

/// Where the values of a run go. Derive from it to send them elsewhere; the library calls it from one thread
/// of the main process only. An exception reaches whoever logs.
class Tracker {
 public:
  virtual ~Tracker() = default;

  [[nodiscard]] virtual std::string_view name() const = 0;

  /// Keeps the run's settings. Called once, before the first `log`.
  virtual void store_config(const Config& config) = 0;

  /// Keeps values, which may be NaN or infinite, of one step. Steps may repeat or go back when a run was
  /// resumed.
  virtual void log(const std::map<std::string, double>& values, std::int64_t step) = 0;

  /// Makes all that was given so far readable by others.
  virtual void flush() {}

  /// The run has ended; nothing more is logged.
  virtual void finish() { flush(); }
};

/// The trackers that `make_tracker` knows.
[[nodiscard]] std::vector<std::string> tracker_names();

/// A tracker that writes into `folder`, which is made where needed:
/// - "tensorboard": an event file, the settings as a table on the page "Text";
/// - "jsonl": `metrics.jsonl`, one JSON object a line, `{"step":10,"time":1700000000.5,"loss":0.25}`, the
/// settings as
///   `{"time":…,"config":{…}}`; NaN and infinities are the texts "NaN", "Infinity", "-Infinity". A resumed
///   run appends.
/// Throws `kInvalidArgument`, listing the known names, for another name; `kSystem` when the file cannot be
/// made.
[[nodiscard]] std::unique_ptr<Tracker> make_tracker(std::string_view name,
                                                    const std::filesystem::path& folder);

}  // namespace hasten::track

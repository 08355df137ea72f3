#include <array>
#include <chrono>
#include <cmath>
#include <type_traits>

#include <hasten/base/error.h>
#include <hasten/track/tracker.h>

#include "track/json.h"
#include "track/sinks.h"

namespace hasten::track {
namespace {

using Json = nlohmann::ordered_json;

struct Sink {
  std::string_view name;
  std::unique_ptr<Tracker> (*make)(const std::filesystem::path& folder);
};

constexpr std::array<Sink, 2> kSinks{{
    {"tensorboard", make_tensorboard_tracker},
    {"jsonl", make_jsonl_tracker},
}};

void flatten_into(Config& flat, const std::string& prefix, const Config& config) {
  for (const auto& [key, value] : config) {
    const std::string name = prefix + key;
    const auto* map = std::get_if<Config>(&value.value());
    if (map != nullptr && !map->empty()) {
      flatten_into(flat, name + '.', *map);
      continue;
    }
    const bool nested = map != nullptr || std::holds_alternative<ConfigValue::List>(value.value());
    const bool added = flat.emplace(name, nested ? ConfigValue(to_text(value)) : value).second;
    require(added, ErrorCode::kInvalidArgument, "track::flatten", "two settings get the name '", name,
            "' once nested ones are joined by dots. Rename one of them.");
  }
}

}  // namespace

Json to_json(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

Json to_json(const ConfigValue& value) {
  return std::visit(
      [](const auto& held) -> Json {
        using Held = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<Held, double>) {
          return to_json(held);
        } else if constexpr (std::is_same_v<Held, ConfigValue::List>) {
          Json list = Json::array();
          for (const ConfigValue& element : held) list.push_back(to_json(element));
          return list;
        } else if constexpr (std::is_same_v<Held, ConfigValue::Map>) {
          Json map = Json::object();
          for (const auto& [key, element] : held) map[key] = to_json(element);
          return map;
        } else {
          return held;
        }
      },
      value.value());
}

std::string to_line(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string to_text(const ConfigValue& value) {
  const Json json = to_json(value);
  return json.is_string() ? json.get<std::string>() : to_line(json);
}

Config flatten(const Config& config) {
  Config flat;
  flatten_into(flat, "", config);
  return flat;
}

std::vector<std::string> tracker_names() {
  std::vector<std::string> names;
  for (const Sink& sink : kSinks) names.emplace_back(sink.name);
  return names;
}

std::unique_ptr<Tracker> make_tracker(std::string_view name, const std::filesystem::path& folder) {
  std::string known;
  for (const Sink& sink : kSinks) {
    if (sink.name == name) return sink.make(folder);
    known += (known.empty() ? "" : ", ") + std::string(sink.name);
  }
  fail(ErrorCode::kInvalidArgument, "make_tracker", "there is no tracker '", name, "'. Known are: ", known,
       "; for another, derive from track::Tracker.");
}

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace hasten::track

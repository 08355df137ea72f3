#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include <hasten/track/tracker.h>

namespace hasten::track {

/// The number, or a text where JSON has none: "NaN", "Infinity", "-Infinity".
nlohmann::ordered_json to_json(double value);

nlohmann::ordered_json to_json(const ConfigValue& value);

/// One line of JSON. Bytes that are no UTF-8 are replaced, since a log must not fail on a name.
std::string to_line(const nlohmann::ordered_json& json);

}  // namespace hasten::track

#include <string>

#include <hasten/base/environment.h>
#include <hasten/config/options.h>

namespace hasten::config {
namespace {

constexpr auto kMixedPrecisionVariable = "HASTEN_MIXED_PRECISION";
constexpr auto kCpuVariable = "HASTEN_CPU";
constexpr auto kDebugVariable = "HASTEN_DEBUG";

}  // namespace

LaunchSettings settings_from_environment() {
  LaunchSettings settings{.cpu = environment::get_flag(kCpuVariable).value_or(false),
                          .debug = environment::get_flag(kDebugVariable).value_or(false)};
  if (const auto precision = environment::get(kMixedPrecisionVariable)) {
    settings.mixed_precision = parse_precision(*precision, kMixedPrecisionVariable);
  }
  return settings;
}

std::vector<Variable> environment_of(const LaunchSettings& settings) {
  std::vector<Variable> variables;
  if (settings.mixed_precision) {
    variables.push_back({kMixedPrecisionVariable, std::string(name(*settings.mixed_precision))});
  }
  if (settings.cpu) variables.push_back({kCpuVariable, "1"});
  if (settings.debug) variables.push_back({kDebugVariable, "1"});
  return variables;
}

}  // namespace hasten::config

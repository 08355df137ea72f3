#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace hasten::log {

enum class Level { kDebug, kInfo, kWarning, kError };

/// Writes one line to standard error, `hasten: text`, marked with the level from warnings on. Thread-safe.
/// Lines below the level that HASTEN_LOG_LEVEL names (debug, info, warning, error; default info) are dropped.
void write(Level level, std::string_view text);

inline void debug(std::string_view text) {
  write(Level::kDebug, text);
}
inline void info(std::string_view text) {
  write(Level::kInfo, text);
}
inline void warning(std::string_view text) {
  write(Level::kWarning, text);
}
inline void error(std::string_view text) {
  write(Level::kError, text);
}

/// The line as it stands on standard error, without its end: `hasten: warning: text`.
[[nodiscard]] std::string line_of(Level level, std::string_view text);

/// Replaces where lines go, for programs that have a log of their own and for a progress bar that must not be
/// torn. An empty function restores standard error. Returns the sink that was in place.
using Sink = std::function<void(Level, std::string_view)>;
Sink set_sink(Sink sink);

}  // namespace hasten::log

#include <cstdio>
#include <mutex>
#include <utility>

#include <hasten/base/environment.h>
#include <hasten/base/log.h>

namespace hasten::log {
namespace {

Level lowest_level() {
  static const Level level = [] {
    const std::string name = environment::get("HASTEN_LOG_LEVEL").value_or("info");
    if (name == "debug") return Level::kDebug;
    if (name == "warning") return Level::kWarning;
    if (name == "error") return Level::kError;
    return Level::kInfo;
  }();
  return level;
}

struct State {
  std::mutex mutex;
  Sink sink;
};

// Never destroyed: a thread may log while the process ends.
State& state() {
  static auto* instance = new State;
  return *instance;
}

}  // namespace

std::string line_of(Level level, std::string_view text) {
  std::string line = "hasten: ";
  if (level == Level::kWarning) line += "warning: ";
  if (level == Level::kError) line += "error: ";
  return line += text;
}

void write(Level level, std::string_view text) {
  if (level < lowest_level()) return;
  const std::lock_guard lock(state().mutex);
  if (state().sink) {
    state().sink(level, text);
  } else {
    const std::string line = line_of(level, text) + '\n';
    std::fwrite(line.data(), 1, line.size(), stderr);
  }
}

Sink set_sink(Sink sink) {
  const std::lock_guard lock(state().mutex);
  return std::exchange(state().sink, std::move(sink));
}

}  // namespace hasten::log

#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <hasten/base/log.h>

namespace hasten {

class Accelerator;

namespace detail {
class Run;
}

/// Which processes write a line.
struct LogOptions {
  bool main_process_only = true;
  /// All processes write, one after another in order of rank; every rank must call it.
  bool in_order = false;
};

/// Writes lines to the library's log, by default on the main process alone; where others write, too, a line
/// begins with their rank. Which levels are written HASTEN_LOG_LEVEL says.
class Logger {
 public:
  explicit Logger(const Accelerator& accelerator);

  void debug(std::string_view text, const LogOptions& options = {}) const {
    write(log::Level::kDebug, text, options);
  }
  void info(std::string_view text, const LogOptions& options = {}) const {
    write(log::Level::kInfo, text, options);
  }
  void warning(std::string_view text, const LogOptions& options = {}) const {
    write(log::Level::kWarning, text, options);
  }
  void error(std::string_view text, const LogOptions& options = {}) const {
    write(log::Level::kError, text, options);
  }
  /// The same text only the first time in this process.
  void warning_once(std::string_view text, const LogOptions& options = {}) const;

 private:
  void write(log::Level level, std::string_view text, const LogOptions& options) const;

  std::shared_ptr<detail::Run> run_;
};

}  // namespace hasten

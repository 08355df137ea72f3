#pragma once

#include <deque>
#include <functional>
#include <string>
#include <string_view>

#include "launcher/supervise.h"

namespace hasten::launcher {

/// Standard output or standard error of the launcher, shared by the ranks. Every line starts with its rank's
/// mark.
class MarkedOutput {
 public:
  /// `on_broken` is called once, when nobody reads any more; what comes later is dropped.
  MarkedOutput(int descriptor, std::function<void()> on_broken);

  /// Writes whole lines, or the start of one: when another rank writes next, that line is ended first.
  void write(int rank, std::string_view text);

  /// Ends an unfinished line.
  void finish();

 private:
  void append_line(int rank, std::string_view line, std::string& out);
  void write_all(std::string_view text);

  int descriptor_;
  bool terminal_;
  bool colour_;
  bool broken_ = false;
  int unfinished_rank_ = -1;  ///< whose line the cursor stands in; -1 at the start of a line
  std::function<void()> on_broken_;
};

/// Hands the lines of one rank's output on and remembers the last ones.
class LineForwarder : public Channel {
 public:
  /// `output` must outlive it.
  LineForwarder(Descriptor source, int rank, MarkedOutput& output);

  void receive(std::string_view bytes) override;
  void flush() override;
  [[nodiscard]] bool holds_back() const override { return !held_.empty(); }

  /// The last lines, oldest first, without line ends.
  [[nodiscard]] const std::deque<std::string>& last_lines() const { return last_lines_; }

 private:
  void remember(std::string_view text);

  int rank_;
  MarkedOutput& output_;
  std::string held_{};  ///< the start of a line whose end has not come
  std::deque<std::string> last_lines_{};
  bool last_line_open_ = false;
};

}  // namespace hasten::launcher

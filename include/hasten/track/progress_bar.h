#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace hasten::track {

struct ProgressOptions {
  std::string description{};            ///< stands before the bar
  std::optional<std::int64_t> total{};  ///< steps in all; unset when that is unknown
  std::int64_t start = 0;       ///< steps that an earlier run did; they count as done but not for the rate
  std::string unit = "steps";   ///< of the rate
  double units_per_step = 1.0;  ///< the batch size when the unit is images
  std::chrono::milliseconds redraw_every{100};    ///< on a terminal
  std::chrono::milliseconds print_every{10'000};  ///< elsewhere; there also at each tenth of the total
  std::function<void(std::string_view)> write{};  ///< where text goes; unset: standard error
  std::function<std::chrono::steady_clock::time_point()> clock{};  ///< unset: the steady clock
  std::optional<bool> terminal{};  ///< unset: whether standard error is one that can redraw a line
  std::optional<int> width{};      ///< columns of the terminal; unset: asked for at each redraw
  std::optional<bool> unicode{};   ///< draw with blocks instead of '#'; unset: as the locale says
};

/// Shows how far a loop has come. On a terminal it is one line that is redrawn,
///
///     epoch 3 |████████████▌           |  312/938  33%  2130 images/s  0:38 left  loss 0.123
///
/// and lines of the log appear above it; elsewhere it is a plain line now and then. While nothing is due,
/// `update` costs a look at the clock. One bar at a time; `update`, `set`, `due` and `finish` belong to one
/// thread, `write_line` and the log may be used from any.
class ProgressBar {
 public:
  explicit ProgressBar(ProgressOptions options = {});
  /// Finishes the bar.
  ~ProgressBar();
  ProgressBar(ProgressBar&&) noexcept;
  ProgressBar& operator=(ProgressBar&&) noexcept;

  /// So many more steps are done.
  void update(std::int64_t steps = 1);

  /// Whether the next `update` shows something, so that values are worth fetching from a device.
  [[nodiscard]] bool due() const;

  /// Shows the value behind the rate from the next redraw on, names in the order of their first use.
  void set(std::string_view name, double value);

  /// Prints a line above the bar.
  void write_line(std::string_view text);

  /// Draws the last state with the mean rate and the time taken, and ends the line. Once; later calls do
  /// nothing.
  void finish();

  /// Steps done, earlier runs' included.
  [[nodiscard]] std::int64_t count() const noexcept;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace hasten::track

#include "track/progress_line.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "track/text.h"

namespace hasten::track {
namespace {

constexpr std::size_t kShortestBar = 8;
constexpr std::size_t kLongestBar = 40;
constexpr std::string_view kGap = "  ";

/// The part of `whole` that is done. Multiplied first, so that 29 of 100 are 29 per cent and not a little
/// less.
double done_of(double whole, std::int64_t count, std::int64_t total) {
  if (total <= 0) return whole;
  return std::clamp(whole * static_cast<double>(count) / static_cast<double>(total), 0.0, whole);
}

std::string padded(std::string text, std::size_t width) {
  return text.size() < width ? std::string(width - text.size(), ' ') + text : text;
}

std::string count_text(const Progress& progress) {
  const std::string count = std::to_string(progress.count);
  if (!progress.total) return count + " steps";
  const std::string total = std::to_string(*progress.total);
  // Rounded down, so that 100 % means all.
  const double percent = std::floor(done_of(100, progress.count, *progress.total));
  return padded(count, total.size()) + '/' + total + std::string(kGap) + padded(short_number(percent), 3) +
         '%';
}

/// All that stands behind the bar, with the first `shown` of the values.
std::string fields(const Progress& progress, const NamedValues& values, std::size_t shown) {
  std::string text = count_text(progress);
  const auto add = [&](const std::string& field) { text.append(kGap).append(field); };
  if (progress.steps_per_second) {
    add(short_number(*progress.steps_per_second * progress.units_per_step) + ' ' +
        std::string(progress.unit) + "/s");
    if (!progress.elapsed && progress.total && *progress.steps_per_second > 0) {
      const auto left = static_cast<double>(std::max<std::int64_t>(0, *progress.total - progress.count));
      add(duration(left / *progress.steps_per_second) + " left");
    }
  }
  if (progress.elapsed) add("in " + duration(*progress.elapsed));
  for (std::size_t i = 0; i < shown; ++i) add(values[i].first + ' ' + short_number(values[i].second));
  return text;
}

/// A bar of so many columns between its ends.
std::string bar(std::int64_t count, std::int64_t total, std::size_t columns, bool unicode) {
  static constexpr std::array<std::string_view, 8> kEighths{"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const auto eighths = static_cast<std::size_t>(done_of(static_cast<double>(columns * 8), count, total));
  const std::size_t full = eighths / 8;
  std::string text = unicode ? "|" : "[";
  for (std::size_t i = 0; i < full; ++i) text += unicode ? "█" : "#";
  std::size_t used = full;
  if (unicode && eighths % 8 != 0) {
    text += kEighths[eighths % 8];
    ++used;
  }
  text.append(columns - used, unicode ? ' ' : '-');
  return text + (unicode ? "|" : "]");
}

}  // namespace

std::string plain_line(const Progress& progress, const NamedValues& values) {
  return std::string(progress.description) + (progress.description.empty() ? "" : ": ") +
         fields(progress, values, values.size());
}

std::string terminal_line(const Progress& progress, const NamedValues& values, std::size_t columns,
                          bool unicode) {
  std::string left(progress.description);
  if (!left.empty()) left += ' ';
  constexpr std::size_t kEnds = 2;
  for (std::size_t shown = values.size();; --shown) {
    const std::string right = fields(progress, values, shown);
    const std::size_t taken = columns_of(left) + columns_of(right);
    const std::size_t needed = progress.total ? taken + kEnds + kGap.size() + kShortestBar : taken;
    if (columns < needed && shown > 0) continue;
    std::string line = left;
    if (progress.total && columns >= needed) {
      std::size_t room = std::min(kLongestBar, columns - taken - kEnds - kGap.size());
      room -= room % kShortestBar;  // else it would twitch as numbers get longer and shorter
      line += bar(progress.count, *progress.total, room, unicode) + std::string(kGap);
    }
    line += right;
    return std::string(first_columns(line, columns));
  }
}

}  // namespace hasten::track

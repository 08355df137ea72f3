#include <algorithm>
#include <utility>
#include <vector>

#include <hasten/track/report.h>

#include "track/text.h"

namespace hasten::track {
namespace {

constexpr std::string_view kFinished = "-- Training finished ";
constexpr std::string_view kInterrupted = "-- Training interrupted ";
constexpr std::size_t kNarrowest = 48;
constexpr std::string_view kGap = "  ";

using Rows = std::vector<std::pair<std::string, std::string>>;

std::string to_width(std::string text, std::size_t columns, char filler) {
  const std::size_t taken = columns_of(text);
  if (taken < columns) text.append(columns - taken, filler);
  return text;
}

/// The rows of what was counted: the number, and how many a second, in columns of their own.
void add_counts(Rows& rows, const RunReport& report) {
  std::string steps = with_separators(report.steps);
  if (report.seconds > 0) steps += " in " + duration(report.seconds);
  std::string samples = with_separators(report.samples);
  if (report.seconds > 0) {
    const std::size_t width = std::max(steps.size(), samples.size()) + kGap.size();
    const auto rate = [&](std::int64_t count) {
      return short_number(static_cast<double>(count) / report.seconds) + " a second";
    };
    steps = to_width(steps, width, ' ') + rate(report.steps);
    samples = to_width(samples, width, ' ') + rate(report.samples);
  }
  rows.emplace_back("steps", steps);
  if (report.samples > 0) rows.emplace_back("samples", samples);
}

Rows rows_of(const RunReport& report) {
  Rows rows;
  std::string processes = with_separators(report.processes);
  if (!report.device.empty()) processes += " x " + report.device;
  if (!report.precision.empty()) processes += report.precision == "no" ? ", fp32" : ", " + report.precision;
  rows.emplace_back("processes", processes);
  if (report.epochs > 0) rows.emplace_back("epochs", with_separators(report.epochs));
  add_counts(rows, report);
  if (report.data_seconds && report.seconds > 0)
    rows.emplace_back("waiting for data", short_number(100 * *report.data_seconds / report.seconds) + " %");
  if (report.peak_memory)
    rows.emplace_back("peak memory",
                      memory_size(*report.peak_memory) + (report.processes > 1 ? " a process" : ""));
  if (!report.resumed_from.empty()) rows.emplace_back("resumed from", report.resumed_from);
  if (!report.checkpoint.empty()) rows.emplace_back("checkpoint", report.checkpoint);
  for (const auto& [name, value] : report.values) rows.emplace_back(on_one_line(name), short_number(value));
  return rows;
}

}  // namespace

std::string format_report(const RunReport& report) {
  const Rows rows = rows_of(report);
  std::size_t names = 0;
  for (const auto& [name, text] : rows) names = std::max(names, columns_of(name));
  std::string body;
  std::size_t widest = kNarrowest;
  for (const auto& [name, text] : rows) {
    const std::string line = to_width(name, names, ' ') + std::string(kGap) + text;
    widest = std::max(widest, columns_of(line));
    body += line + '\n';
  }
  const std::string_view title = report.interrupted ? kInterrupted : kFinished;
  return to_width(std::string(title), widest, '-') + '\n' + body + std::string(widest, '-') + '\n';
}

}  // namespace hasten::track

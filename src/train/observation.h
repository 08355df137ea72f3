#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <hasten/data/loader_base.h>
#include <hasten/track/progress_bar.h>
#include <hasten/track/tracker.h>
#include <hasten/train/accelerator.h>

namespace hasten::detail {

class Run;

/// What people see of a run: trackers, progress bar, closing report. Does nothing on other processes than the
/// main one.
class Observation {
 public:
  explicit Observation(Run& run) : run_(run) {}

  void init_trackers(const std::string& name, const track::Config& config);
  /// Keeps the values of this step; reads none.
  void log(std::initializer_list<std::pair<const char*, LogValue>> values);
  void log_now(std::initializer_list<std::pair<const char*, LogValue>> values, std::int64_t step);
  void print(const std::string& line);

  void on_epochs_begin();
  /// After each update, between two batches of the training loop over `loader`.
  void on_update(const data::LoaderBase& loader);
  /// Closes everything and prints the report.
  void finish();

 private:
  void start_bar(const data::LoaderBase& loader);
  void give_to_trackers(const std::map<std::string, double>& values, std::int64_t step);
  [[nodiscard]] track::Config settings() const;
  void print_report() const;

  Run& run_;
  bool trackers_started_ = false;
  std::vector<std::unique_ptr<track::Tracker>> trackers_;
  std::map<std::string, LogValue> latest_;     // what `log` was told last
  std::map<std::string, double> latest_read_;  // the last that were read
  std::optional<track::ProgressBar> bar_;
  std::optional<std::chrono::steady_clock::time_point> started_;
  std::int64_t updates_at_start_ = 0;
  std::int64_t samples_per_update_ = 0;  // over all processes
  double data_seconds_ = 0;              // that the loop has waited for its loader
};

}  // namespace hasten::detail

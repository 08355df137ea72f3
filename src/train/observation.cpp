#include "train/observation.h"

#include <iostream>
#include <unistd.h>

#include <hasten/base/error.h>
#include <hasten/base/version.h>
#include <hasten/device/device.h>
#include <hasten/track/report.h>

#include "train/run.h"

namespace hasten::detail {
namespace {

std::map<std::string, LogValue> collect(std::initializer_list<std::pair<const char*, LogValue>> values) {
  std::map<std::string, LogValue> collected;
  for (const auto& [name, value] : values) {
    const auto* tensor = std::get_if<at::Tensor>(&value);
    require(tensor == nullptr || (tensor->defined() && tensor->numel() == 1), ErrorCode::kInvalidArgument,
            "log", "'", name, "' is a tensor of ",
            tensor != nullptr && tensor->defined() ? tensor->numel() : 0,
            " elements, but a value must have one. Log its mean or sum.");
    // Detached, or the value would keep the whole graph of its step alive.
    collected.insert_or_assign(name, tensor != nullptr ? LogValue(tensor->detach()) : value);
  }
  return collected;
}

std::map<std::string, double> read(const std::map<std::string, LogValue>& values) {
  std::map<std::string, double> numbers;
  for (const auto& [name, value] : values) {
    const auto* tensor = std::get_if<at::Tensor>(&value);
    numbers[name] = tensor != nullptr ? tensor->item<double>() : std::get<double>(value);
  }
  return numbers;
}

}  // namespace

void Observation::init_trackers(const std::string& name, const track::Config& config) {
  if (!run_.is_main() || trackers_started_) return;
  trackers_started_ = true;
  const auto folder = run_.options.project.dir / "logs" / name;
  for (const std::string& kind : run_.options.log_with)
    trackers_.push_back(track::make_tracker(kind, folder));
  track::Config settings = this->settings();
  for (const auto& [key, value] : config) settings.insert_or_assign(key, value);
  for (const auto& tracker : trackers_) tracker->store_config(settings);
}

track::Config Observation::settings() const {
  return {{"hasten", version()},
          {"processes", run_.process.world_size},
          {"device", run_.device.str()},
          {"strategy", run_.strategy->name()},
          {"mixed_precision", hasten::name(run_.precision)},
          {"gradient_accumulation_steps", run_.accumulation.steps()},
          {"schedule_unit",
           run_.options.schedule_unit == ScheduleUnit::kUpdates ? "updates" : "single-process batches"}};
}

void Observation::log(std::initializer_list<std::pair<const char*, LogValue>> values) {
  if (!run_.is_main()) return;
  for (auto& [name, value] : collect(values)) latest_.insert_or_assign(name, std::move(value));
}

void Observation::log_now(std::initializer_list<std::pair<const char*, LogValue>> values, std::int64_t step) {
  if (!run_.is_main()) return;
  give_to_trackers(read(collect(values)), step);
}

void Observation::give_to_trackers(const std::map<std::string, double>& values, std::int64_t step) {
  init_trackers("", {});
  for (const auto& [name, value] : values) latest_read_.insert_or_assign(name, value);
  for (const auto& tracker : trackers_) tracker->log(values, step);
}

void Observation::print(const std::string& line) {
  // On a terminal the line has to stand above the bar; in a file it is nobody's neighbour.
  if (bar_ && ::isatty(STDOUT_FILENO) != 0) {
    bar_->write_line(line);
  } else {
    std::cout << line << std::endl;
  }
}

void Observation::on_epochs_begin() {
  if (started_) return;
  started_ = std::chrono::steady_clock::now();
  updates_at_start_ = run_.updates;
}

void Observation::start_bar(const data::LoaderBase& loader) {
  const std::int64_t steps = run_.accumulation.steps();
  const std::int64_t per_epoch = (loader.batches() + steps - 1) / steps;
  bar_.emplace(track::ProgressOptions{.total = per_epoch * *run_.epoch_count,
                                      .start = updates_at_start_,
                                      .unit = "samples",
                                      .units_per_step = static_cast<double>(samples_per_update_)});
}

void Observation::on_update(const data::LoaderBase& loader) {
  if (!run_.is_main()) return;
  samples_per_update_ = loader.global_batch_size() * run_.accumulation.steps();
  data_seconds_ = loader.wait_seconds();
  if (run_.updates % run_.options.log_every == 0 && !latest_.empty())
    give_to_trackers(read(latest_), run_.updates);
  if (!run_.options.progress || !run_.epoch_count) return;
  if (!bar_) start_bar(loader);
  if (bar_->due())
    for (const auto& [name, value] : read(latest_)) bar_->set(name, value);
  bar_->update(run_.updates - bar_->count());
}

void Observation::finish() {
  if (!run_.is_main()) return;
  if (bar_) bar_->finish();
  for (const auto& tracker : trackers_) tracker->finish();
  trackers_.clear();
  if (run_.options.progress && started_) print_report();
  bar_.reset();
}

void Observation::print_report() const {
  const auto seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - *started_).count();
  track::RunReport report{.processes = run_.process.world_size,
                          .device = std::string(device::backend(run_.device).name()),
                          .precision = std::string(hasten::name(run_.precision)),
                          .epochs = run_.epoch,
                          .steps = run_.updates - updates_at_start_,
                          .seconds = seconds,
                          .peak_memory = device::backend(run_.device).memory(device::index(run_.device)).peak,
                          .resumed_from = run_.resumed_from ? run_.resumed_from->string() : "",
                          .checkpoint = run_.last_checkpoint.string(),
                          .values = latest_read_,
                          .interrupted = run_.stopping};
  report.samples = report.steps * samples_per_update_;
  if (samples_per_update_ > 0) report.data_seconds = data_seconds_;
  std::cerr << track::format_report(report) << std::flush;
}

}  // namespace hasten::detail

#include "train/run.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/tensor.h>

#include <hasten/base/error.h>
#include <hasten/base/log.h>
#include <hasten/config/options.h>
#include <hasten/device/device.h>

namespace hasten::detail {
namespace {

/// How often ranks compare whether one of them was told to stop: often enough for a person at a terminal,
/// seldom enough to cost nothing.
constexpr std::chrono::milliseconds kStopCheckInterval{100};
constexpr std::int64_t kMostUpdatesBetweenStopChecks = 1000;

}  // namespace

Run::Run(AcceleratorOptions given)
    : options(std::move(given)),
      process(config::process_from_environment()),
      device(at::kCPU),
      precision(Precision::kNo),
      accumulation(options.gradient_accumulation_steps, options.short_window, options.sync_with_dataloader) {
  const config::LaunchSettings settings = config::settings_from_environment();
  options.debug = options.debug || settings.debug;
  device = device::choose(options.cpu || settings.cpu, process.local_rank);
  device::backend(device).select(device::index(device));
  if (options.keep_freed_memory) device::backend(device).keep_freed_memory();
  precision = options.mixed_precision.value_or(settings.mixed_precision.value_or(Precision::kNo));
  if (precision == Precision::kFp16) scaler.emplace(options.grad_scaler);
  require(options.log_every >= 1, ErrorCode::kInvalidArgument, "Accelerator", "log_every is ",
          options.log_every, ", but must be at least 1.");
  require(options.project.checkpoint_every >= 0, ErrorCode::kInvalidArgument, "Accelerator",
          "project.checkpoint_every is ", options.project.checkpoint_every, ", but must not be negative.");
  require(!options.project.total_limit || *options.project.total_limit >= 1, ErrorCode::kInvalidArgument,
          "Accelerator",
          "project.total_limit is 0, which would remove every checkpoint as soon as it is written. Use "
          "1 or more, or leave it unset.");
  if (options.log_with == std::vector<std::string>{"none"}) {
    options.log_with.clear();
  } else if (options.log_with.empty() && !options.project.dir.empty()) {
    options.log_with = {"tensorboard", "jsonl"};
  }
  require(
      !options.project.dir.empty() ||
          (options.log_with.empty() && options.project.checkpoint_every == 0 && !options.project.resume),
      ErrorCode::kInvalidArgument, "Accelerator",
      "log_with, project.checkpoint_every and project.resume need a place for their files. Set project.dir.");
  group = process.world_size == 1
              ? comm::Group::solo(device)
              : comm::Group::connect(process, device, {.timeout = options.timeout, .debug = options.debug});
  strategy = parallel::make_strategy(group, options.data_parallel);
  observation = std::make_unique<Observation>(*this);
}

bool Run::boundary(LoaderRecord& record) {
  // A loop whose body updates nothing is an evaluation. It runs to its end, or its results would be those of
  // a part of the data; the loop that trains sets the pace.
  if (std::exchange(record.updates_seen, updates) != updates) record.trains = true;
  if (!record.trains || !accumulation.between_windows()) return true;
  if (updates == seen_updates) return !stopping;
  seen_updates = updates;
  if (updates % options.log_every == 0) loss_watch.look(process.rank);
  observation->on_update(*record.loader);
  const std::int64_t every = options.project.checkpoint_every;
  if (every > 0 && updates - saved_updates >= every) save({});
  if (group->size() == 1 ? InterruptGuard::pending() != 0 : updates >= next_stop_check) agree_on_stopping();
  return !stopping;
}

void Run::agree_on_stopping() {
  if (!interrupts || stopping) return;
  const auto now = std::chrono::steady_clock::now();
  const std::int64_t done = std::max<std::int64_t>(updates - updates_at_last_stop_check, 1);
  const auto since = std::chrono::duration_cast<std::chrono::microseconds>(now - last_stop_check).count();
  // Both numbers are the highest of all ranks, so that all come to the same answer and to the same next time.
  const at::Tensor highest = group->all_reduce(
      at::tensor({std::int64_t{InterruptGuard::pending()}, since / done}, at::kLong), comm::ReduceOp::kMax);
  stop_signal = static_cast<int>(highest[0].item<std::int64_t>());
  const std::int64_t per_update = std::max<std::int64_t>(highest[1].item<std::int64_t>(), 1);
  const std::int64_t interval = std::chrono::microseconds(kStopCheckInterval).count();
  next_stop_check =
      updates + std::clamp<std::int64_t>(interval / per_update, 1, kMostUpdatesBetweenStopChecks);
  last_stop_check = now;
  updates_at_last_stop_check = updates;
  if (stop_signal == 0) return;
  stopping = true;
  if (!options.project.dir.empty() && accumulation.between_windows() && updates != saved_updates) save({});
}

// ---- loops over loaders ----

bool LoaderRecord::on_pass_begin(data::LoaderBase& begun) {
  run->running_loaders.push_back(&begun);
  updates_seen = run->updates;
  epoch_at_begin_ = begun.epoch();
  // A run that was saved after a pass, but within the same epoch of the run, has that pass behind it.
  if (passes_to_skip == 0) return true;
  --passes_to_skip;
  return false;
}

bool LoaderRecord::on_batch_end(data::LoaderBase& advanced) {
  std::erase(run->running_loaders, &advanced);
  run->running_loaders.push_back(&advanced);
  return run->boundary(*this);
}

void LoaderRecord::on_pass_end(data::LoaderBase& ended) noexcept {
  std::erase(run->running_loaders, &ended);
  if (run->updates != updates_seen) trains = true;
  const bool goes_on = ended.epoch() == epoch_at_begin_;
  if (!goes_on) ++passes_in_epoch;
}

// ---- epochs ----

void begin_epochs(Run& run, std::int64_t count) {
  require(count >= 0, ErrorCode::kInvalidArgument, "epochs", "the number of epochs is ", count,
          ", but must not be negative.");
  if (run.options.project.resume && !run.resumed_from && !run.epoch_count) run.resume();
  if (!run.epoch_count)  // loops before the epochs belong to none
    run.loaders.for_each([](LoaderRecord& record) { record.passes_in_epoch = record.passes_to_skip; });
  run.epoch_count = count;
  if (!run.interrupts) run.interrupts.emplace();
  run.last_stop_check = std::chrono::steady_clock::now();
  run.updates_at_last_stop_check = run.updates;
  run.next_stop_check = run.updates;
  run.observation->on_epochs_begin();
}

std::int64_t current_epoch(const Run& run) {
  return run.epoch;
}

bool epochs_are_over(const Run& run) {
  return run.stopping || run.epoch >= run.epoch_count.value_or(0);
}

void finish_epoch(Run& run) {
  if (run.stopping) return;
  ++run.epoch;
  run.loaders.for_each([](LoaderRecord& record) { record.passes_in_epoch = record.passes_to_skip = 0; });
  run.agree_on_stopping();
}

// ---- windows ----

void open_window(Run& run) {
  const data::LoaderBase* loader = run.current_loader();
  const bool data_ends = loader != nullptr && loader->is_last_batch();
  run.accumulation.open(data_ends);
}

void close_window(Run& run) noexcept {
  run.accumulation.close();
}

void forbid_synchronizing(Run& run, bool on) noexcept {
  run.no_sync_scopes += on ? 1 : -1;
}

bool is_main(const Run& run) {
  return run.is_main();
}

void wait_for_all(Run& run) {
  run.group->barrier();
}

void release_others(Run& run) noexcept {
  try {
    run.group->barrier();
  } catch (const std::exception& error) {
    log::error(error.what());  // a destructor; the next collective throws the same
  }
}

}  // namespace hasten::detail

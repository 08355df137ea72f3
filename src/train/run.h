#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <hasten/checkpoint/folder.h>
#include <hasten/comm/group.h>
#include <hasten/config/process.h>
#include <hasten/optim/reduce_on_plateau.h>
#include <hasten/optim/stepper.h>
#include <hasten/parallel/strategy.h>
#include <hasten/params/parameter_set.h>
#include <hasten/precision/grad_scaler.h>
#include <hasten/train/accelerator.h>

#include "train/accumulation.h"
#include "train/interrupt.h"
#include "train/loss_watch.h"
#include "train/observation.h"

namespace torch::nn {
class Module;
}

namespace hasten::detail {

/// A thing's place in the table of what is held by which run. Throws when another run holds it.
class Hold {
 public:
  Hold(const void* thing, const Run& run, std::string_view kind);
  ~Hold();
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

 private:
  const void* thing_;
};

class ModelRecord {
 public:
  std::shared_ptr<Run> run;  // first, so that it goes last: the replica needs its strategy
  std::shared_ptr<torch::nn::Module> module;
  Hold hold;
  params::ParameterSet parameters;
  std::unique_ptr<device::OperatorHook> keeps_fp32;  // null where no module of it does
  std::unique_ptr<parallel::Replica> replica;
  bool layout_on_trial = false;
  params::NamedTensors buffers_before_trial;
  at::Tensor random_state_before_trial;

  ModelRecord(std::shared_ptr<Run> run, std::shared_ptr<torch::nn::Module> module);
  /// To be called again when parameters get other memory.
  void keep_fp32();
};

class OptimizerRecord {
 public:
  std::shared_ptr<Run> run;
  torch::optim::Optimizer* optimizer;
  Hold hold;
  std::unique_ptr<optim::Stepper> stepper;
  std::int64_t updates = 0;
  bool skipped = false;        // whether the last step was left out
  bool unscaled = false;       // gradients have been divided by the loss scale since the last backward
  at::Tensor found_nonfinite;  // what unscaling found; 0-d

  OptimizerRecord(std::shared_ptr<Run> run, torch::optim::Optimizer& optimizer);
  /// Those of all groups, in order.
  [[nodiscard]] std::vector<at::Tensor> parameters() const;
};

class SchedulerRecord {
 public:
  std::shared_ptr<Run> run;
  torch::optim::LRScheduler* scheduler;
  Hold hold;

  SchedulerRecord(std::shared_ptr<Run> run, torch::optim::LRScheduler& scheduler);
};

class PlateauRecord {
 public:
  std::shared_ptr<Run> run;
  optim::ReduceOnPlateau* plateau;
  Hold hold;

  PlateauRecord(std::shared_ptr<Run> run, optim::ReduceOnPlateau& plateau);
};

class LoaderRecord final : public data::LoaderObserver {
 public:
  std::shared_ptr<Run> run;
  data::LoaderBase* loader;
  std::shared_ptr<data::LoaderBase* const> anchor;  // null inside once the loader is gone
  Hold hold;
  bool trains = false;               // an optimizer was updated in a loop over it
  std::int64_t passes_in_epoch = 0;  // loops over it that ended in the run's present epoch
  std::int64_t passes_to_skip = 0;   // those of them that the run before it was resumed had done
  std::int64_t updates_seen = 0;     // when its loop took the batch in its hands
  std::optional<bool> even_batches_before = std::nullopt;  // while a join has them otherwise

  LoaderRecord(std::shared_ptr<Run> run, data::LoaderBase& loader);
  ~LoaderRecord() override;

  bool on_pass_begin(data::LoaderBase& loader) override;
  bool on_batch_end(data::LoaderBase& loader) override;
  void on_pass_end(data::LoaderBase& loader) noexcept override;

 private:
  std::int64_t epoch_at_begin_ = 0;
};

/// The living records of one kind, in the order of preparing.
template <class Record>
class Records {
 public:
  void add(const std::shared_ptr<Record>& record) { all_.push_back(record); }

  template <class Visit>
  void for_each(Visit&& visit) const {
    for (const auto& weak : all_)
      if (const auto record = weak.lock()) visit(*record);
  }

  template <class Predicate>
  [[nodiscard]] std::shared_ptr<Record> find(Predicate&& matches) const {
    for (const auto& weak : all_)
      if (auto record = weak.lock(); record && matches(*record)) return record;
    return nullptr;
  }

  [[nodiscard]] std::vector<std::shared_ptr<Record>> living() const {
    std::vector<std::shared_ptr<Record>> records;
    for (const auto& weak : all_)
      if (auto record = weak.lock()) records.push_back(std::move(record));
    return records;
  }

 private:
  std::vector<std::weak_ptr<Record>> all_;
};

/// All that an Accelerator and its handles share. The handles own it together, so that it outlives the
/// Accelerator where a handle does.
class Run : public std::enable_shared_from_this<Run> {
 public:
  explicit Run(AcceleratorOptions given);

  AcceleratorOptions options;
  config::Process process;
  at::Device device;
  Precision precision;
  std::shared_ptr<comm::Group> group;
  std::unique_ptr<parallel::Strategy> strategy;
  std::optional<precision::GradScaler> scaler;  // in fp16

  Records<ModelRecord> models;
  Records<OptimizerRecord> optimizers;
  Records<SchedulerRecord> schedulers;
  Records<PlateauRecord> plateaus;
  Records<LoaderRecord> loaders;
  bool has_models = false;  // one was prepared at some time

  Accumulation accumulation;
  ItemMean item_mean;
  LossWatch loss_watch;
  int no_sync_scopes = 0;
  bool sync_next_backward = false;  // asked for, whatever windows say
  bool trigger = false;             // raised by this rank
  bool joining = false;             // ranks may have different numbers of batches
  bool reduced_gradients = false;   // some were, since gradients were last dropped
  double backward_scale = 1.0;      // the loss scale that the present gradients carry
  bool scaler_updated = true;       // since the last backward
  bool scaler_saw_nonfinite = false;
  std::int64_t updates = 0;

  /// Objects of the program's that are part of checkpoints.
  struct RegisteredState {
    std::function<std::string()> save;
    std::function<void(std::string_view)> load;
  };
  std::vector<RegisteredState> registered;
  std::vector<std::function<void(const std::filesystem::path&)>> before_save;
  std::vector<std::function<void(const std::filesystem::path&)>> before_load;

  std::vector<data::LoaderBase*> running_loaders;  // those in a loop; the one that gave a batch last is last

  std::int64_t epoch = 0;
  std::optional<std::int64_t> epoch_count;
  bool stopping = false;                     // the epochs end early
  int stop_signal = 0;                       // which signal said so
  std::optional<InterruptGuard> interrupts;  // while epochs run
  std::int64_t seen_updates = 0;             // at the last boundary
  std::int64_t next_stop_check = 0;          // when ranks next compare whether one was told to stop
  std::chrono::steady_clock::time_point last_stop_check;
  std::int64_t updates_at_last_stop_check = 0;
  std::int64_t saved_updates = 0;  // when the state was last saved or loaded
  std::optional<std::filesystem::path> resumed_from;
  std::filesystem::path last_checkpoint;

  std::unique_ptr<Observation> observation;

  [[nodiscard]] bool is_main() const { return process.rank == 0; }
  /// The loader whose batch the program has in its hands; null outside of loops.
  [[nodiscard]] data::LoaderBase* current_loader() const {
    return running_loaders.empty() ? nullptr : running_loaders.back();
  }
  /// Between a loader's batches: saves when due and looks whether to stop. False when the pass is to end.
  [[nodiscard]] bool boundary(LoaderRecord& record);
  /// Makes all ranks agree on whether one of them was told to stop, and saves if so. Every rank must call it.
  void agree_on_stopping();
  /// "'fc.weight'": a parameter's name in messages; "number 3" for one of no prepared model.
  [[nodiscard]] std::string name_of(const at::Tensor& parameter, std::size_t number) const;
  /// The items of all ranks' backward passes of this window. Every rank must call it.
  [[nodiscard]] std::int64_t sum_of_items();
  /// Makes models, optimizers, schedules, scaler and counters those of another rank.
  void adopt_state_of(int rank);
  /// Divides the gradients of every optimizer by the loss scale, once after each backward.
  void unscale_gradients();

  [[nodiscard]] std::filesystem::path checkpoints() const { return options.project.dir / "checkpoints"; }
  std::filesystem::path save(const std::filesystem::path& folder);
  void load(const std::filesystem::path& folder);
  /// Loads the newest checkpoint of a run of this project that did not finish; returns whether there was one.
  bool resume();
  [[nodiscard]] std::optional<std::filesystem::path> newest_checkpoint(std::int64_t after) const;
  /// The number of the last checkpoint of a run that finished in this project, or -1.
  [[nodiscard]] std::int64_t finished_number() const;
  void mark_finished() const;
};

}  // namespace hasten::detail

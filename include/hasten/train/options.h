#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <hasten/config/precision.h>
#include <hasten/parallel/strategy.h>
#include <hasten/precision/fastest.h>
#include <hasten/precision/grad_scaler.h>

namespace hasten {

using parallel::DataParallelOptions;
using parallel::GradientCompression;

/// Where a run keeps its files, and when it saves itself. New fields are appended.
struct ProjectOptions {
  /// Folder of the run: checkpoints under `checkpoints/`, trackers' files under `logs/`. Empty: nothing is
  /// kept.
  std::filesystem::path dir = {};
  /// Save the whole state after every so many optimizer updates, and at the end; 0: only when interrupted.
  std::int64_t checkpoint_every = 0;
  /// Keep only the newest so many checkpoints; unset: all.
  std::optional<std::size_t> total_limit = std::nullopt;
  /// `epochs` begins by restoring the newest checkpoint of a run in this folder that did not finish, as
  /// `load_state_if_any` does.
  bool resume = false;
};

/// How the gradients of an accumulation window that the end of the data cuts short are weighted.
enum class ShortWindow {
  kMean,        ///< mean over the micro-batches that it has
  kDivideByAll  ///< divided by gradient_accumulation_steps all the same, as Accelerate does
};

/// What a prepared scheduler counts.
enum class ScheduleUnit {
  kUpdates,              ///< optimizer updates, whatever the number of processes
  kSingleProcessBatches  ///< the updates that one process would need for the same samples, as Accelerate
                         ///< does: an update of P processes is P steps, and 1 where a loader has
                         ///< `split_batches`
};

/// What `Accelerator::backward` is told. New fields are appended.
struct BackwardOptions {
  bool retain_graph = false;  ///< keep the graph for another backward pass
  bool create_graph = false;  ///< make the gradients differentiable themselves
  /// The loss is a sum over so many items of this rank's micro-batch, such as the tokens of a text; 0 is
  /// allowed. The gradients of a window are then those of the sum over all its micro-batches and all ranks,
  /// divided by the number of all their items, however these are spread. Every backward pass of a window, on
  /// every rank, must give it or none.
  std::optional<std::int64_t> items = std::nullopt;
};

/// How ranks whose data ends at different steps go on together. New fields are appended.
struct JoinOptions {
  /// Gradients are divided by the number of all ranks, also when some have no data left; else by the number
  /// of those that have. The name is PyTorch's.
  bool divide_by_initial_world_size = true;
  /// For the time of it, whether prepared loaders fill their last step with copies. Unset: as they are.
  std::optional<bool> even_batches = std::nullopt;
};

/// In which memory layout the weights of convolutions are kept.
enum class MemoryFormat {
  kAuto,         ///< channels-last where that is faster: for models that mostly are ordinary 2-d convolutions
  kAsBuilt,      ///< as the model was built
  kChannelsLast  ///< channels-last
};

/// What an `Accelerator` is told. New fields are appended, since their order is part of the interface.
struct AcceleratorOptions {
  /// The precision of prepared models' forward passes. Unset: what the launcher was told, else `kNo`.
  std::optional<Precision> mixed_precision = std::nullopt;
  /// Micro-batches whose gradients make one optimizer update.
  std::int64_t gradient_accumulation_steps = 1;
  /// Trackers: "tensorboard", "jsonl". Empty: both, where there is a project folder; {"none"}: no tracker.
  std::vector<std::string> log_with = {};
  ProjectOptions project = {};
  /// Use the CPU though the machine has an accelerator. The launcher's --cpu does the same.
  bool cpu = false;
  ShortWindow short_window = ShortWindow::kMean;
  MemoryFormat memory_format = MemoryFormat::kAuto;
  parallel::DataParallelOptions data_parallel = {};
  precision::GradScalerOptions grad_scaler = {};
  /// Trackers are given what `log` was told at every so many optimizer updates. Values are read from the
  /// device only then.
  std::int64_t log_every = 10;
  /// Show a progress bar and a closing report on the main process.
  bool progress = true;
  /// On the CPU, keep the large blocks of memory that tensors free for the next step, instead of giving them
  /// back to the system at once, at most a quarter more than were ever in use. Networks with large
  /// activations train faster. Holds for the rest of the process.
  bool keep_freed_memory = true;
  /// How long a collective waits for the other processes.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  /// The end of a loader ends the accumulation window, too. Off, the window goes on with the next loop.
  bool sync_with_dataloader = true;
  /// Reduce gradients in every micro-batch instead of the window's last only. The result is the same; where a
  /// strategy keeps only parts of the gradients, it needs less memory and more time.
  bool sync_each_batch = false;
  /// A scheduler's step counts only when an optimizer was updated. Off, each call counts.
  bool step_scheduler_with_optimizer = true;
  ScheduleUnit schedule_unit = ScheduleUnit::kUpdates;
  /// In mixed precision, modules whose parameters compute in fp32 all the same, by their paths as in
  /// parameter names: {"head", "encoder.norm"}. A path stands for all that is below it. See
  /// `precision::keep_fp32`, and `precision::in_fp32` for a part of a `forward`.
  std::vector<std::string> keep_fp32 = {};
  /// A parameter that is bf16 itself is updated through an fp32 copy, which the optimizer's side keeps and a
  /// checkpoint holds: most updates are too small for bf16's 8 bits to change.
  bool fp32_master_weights = true;
  /// Check at every update, on several processes, that all ranks have the same gradients before it and the
  /// same weights after it; throws `kMismatch` with the first parameter that differs. Calls of the group that
  /// return at once compare shapes first, too. Costs a pass over all parameters; nothing when off. The
  /// environment's HASTEN_DEBUG=1 does the same.
  bool debug = false;
};

}  // namespace hasten

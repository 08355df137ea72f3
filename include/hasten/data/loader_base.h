#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include <hasten/data/dataset.h>
#include <hasten/data/loader_options.h>
#include <hasten/data/random.h>

namespace hasten::data {

class LoaderBase;
struct Fault;

/// Where a loader stands, as plain numbers. It is the same in every process.
struct LoaderState {
  std::int64_t size = 0;      ///< samples of the dataset
  bool shuffle = false;       ///< whether the order is shuffled
  std::uint64_t seed = 0;     ///< of the order and of augmentation
  std::int64_t epoch = 0;     ///< of the pass that runs, or of the next one
  std::int64_t consumed = 0;  ///< samples of that epoch's order that all processes together have been given
};

/// Told what happens to a loader's pass, in the thread that runs the loop.
class LoaderObserver {
 public:
  virtual ~LoaderObserver() = default;
  /// A loop begins; no batch has been made for it yet. False ends the pass before its first batch; the next
  /// pass begins where this one would have.
  virtual bool on_pass_begin(LoaderBase& loader) = 0;
  /// The loop is done with its batch, and the next is not yet fetched. False ends the pass here; the next
  /// pass then goes on after this batch.
  virtual bool on_batch_end(LoaderBase& loader) = 0;
  /// The pass is over, for whatever reason. `epoch()` is already that of the next pass.
  virtual void on_pass_end(LoaderBase& loader) noexcept = 0;
};

/// What does not depend on a loader's types: the order of samples, this process's part of it, the position,
/// the worker threads. Not thread-safe: one thread runs the loop and calls everything here.
///
/// A pass is one loop over a loader. It begins with `begin()` and belongs to one epoch, which determines the
/// order and the augmentation. When it runs to its end, or the loop is left early, the next pass belongs to
/// the next epoch: a program that takes the first 100 batches again and again sees other samples each time.
/// When an observer or an exception of the dataset ends it, the next pass goes on where this one stopped.
class LoaderBase {
 public:
  LoaderBase(const LoaderBase&) = delete;
  LoaderBase& operator=(const LoaderBase&) = delete;
  virtual ~LoaderBase();

  /// Batches in a pass of this process: exactly as many as a loop gets, counted from the epoch's beginning.
  [[nodiscard]] std::int64_t batches() const noexcept;
  [[nodiscard]] std::int64_t size() const noexcept { return batches(); }
  /// Samples in the dataset.
  [[nodiscard]] std::int64_t samples() const noexcept;
  /// Samples in a full batch of this process, and in a full step of all processes.
  [[nodiscard]] std::int64_t batch_size() const noexcept;
  [[nodiscard]] std::int64_t global_batch_size() const noexcept;
  /// How many samples of the epoch's last step, over all processes in order of rank, are real and not copies
  /// that filled it. Gathered results of the last batch keep that many rows.
  [[nodiscard]] std::int64_t remainder() const noexcept;

  /// The epoch of the pass that runs, or of the next one.
  [[nodiscard]] std::int64_t epoch() const noexcept;
  /// Sets the epoch of the next pass, which starts at its beginning unless that is the epoch already. Throws
  /// `kFailedPrecondition` within a pass.
  void set_epoch(std::int64_t epoch);
  /// Batches of this epoch that a loop has been given, the one in its hands included.
  [[nodiscard]] std::int64_t position() const noexcept;
  /// Makes the next pass begin with this batch of its epoch. Throws `kFailedPrecondition` within a pass,
  /// `kInvalidArgument` unless it lies in [0, batches()].
  void skip_to(std::int64_t batch);
  /// Whether the batch in the loop's hands is the last of the pass.
  [[nodiscard]] bool is_last_batch() const noexcept;
  /// Whether a pass runs.
  [[nodiscard]] bool is_running() const noexcept;

  /// Gives this process its part of the order. Throws `kFailedPrecondition` within a pass, and what `Shard`
  /// throws.
  void shard(std::int64_t rank, std::int64_t num_processes);
  /// Whether the last step is filled with copies; the option at first. Throws `kFailedPrecondition` within a
  /// pass.
  void set_even_batches(bool even);
  [[nodiscard]] std::int64_t rank() const noexcept;
  [[nodiscard]] std::int64_t num_processes() const noexcept;

  /// From now on batches are copied to the device before the loop gets them. Throws `kFailedPrecondition`
  /// within a pass.
  void place(const at::Device& device);

  /// Within a loop's body the batch in its hands counts as used, so a state saved there goes on with the
  /// next.
  [[nodiscard]] LoaderState state() const;
  /// Makes the next pass go on where `state` was taken, in that order and with that augmentation; the number
  /// of processes and the batch size may be others. Throws `kMismatch` for the state of another dataset or
  /// order, `kFailedPrecondition` within a pass.
  void load_state(const LoaderState& state);

  /// Seconds that loops have waited for batches so far, those of making them without workers included.
  [[nodiscard]] double wait_seconds() const noexcept;

  /// Sets who is told of passes; null for nobody.
  void observe(std::shared_ptr<LoaderObserver> observer) noexcept;
  [[nodiscard]] const std::shared_ptr<LoaderObserver>& observer() const noexcept;

  /// Holds a pointer to this loader, which becomes null when the loader is destroyed.
  [[nodiscard]] std::shared_ptr<LoaderBase* const> anchor() const noexcept { return anchor_; }

  [[nodiscard]] const LoaderOptions& options() const noexcept;

 protected:
  LoaderBase(std::int64_t samples, const LoaderOptions& options);

  /// The typed half of a loader. A slot holds a batch or nothing.
  /// Fills the slot, in any thread, without gradients; `worker` is -1 in the loop's thread. `at` is set to
  /// the place of the sample being read, for the message of a failure.
  virtual void make(std::size_t slot, int worker, Indices indices, const BatchContext& context, bool pin,
                    std::size_t& at) = 0;
  /// Moves the slot's batch to the device, in the loop's thread.
  virtual void move(std::size_t slot, const at::Device& device, bool non_blocking) = 0;
  virtual void clear(std::size_t slot) noexcept = 0;

  /// Slots that may be in use: one for the loop and one for each batch that workers may be ahead.
  [[nodiscard]] std::size_t slots() const noexcept;

  /// Begins a pass and returns its number, to be given to the two below. Throws `kFailedPrecondition` when
  /// one runs.
  std::uint64_t begin_pass();
  /// Goes on to the next batch. Throws `kFailedPrecondition` when the pass is no longer the one that runs.
  void next(std::uint64_t pass);
  /// Ends the pass, if it still runs, because the loop was left.
  void leave(std::uint64_t pass) noexcept;
  /// The slot of the batch in the loop's hands, or `kNoSlot` after the last.
  static constexpr std::size_t kNoSlot = static_cast<std::size_t>(-1);
  [[nodiscard]] std::size_t current() const noexcept;

  /// Must be called by the most derived destructor: no worker may run when the slots die.
  void stop() noexcept;

 private:
  struct Pass;
  void fetch();
  void finish();
  void suspend() noexcept;
  void end_pass() noexcept;
  void require_idle(const char* operation) const;
  void reshard(std::int64_t consumed);
  std::size_t make_here();
  std::optional<Fault> try_make(std::size_t slot, int worker, std::int64_t batch,
                                std::vector<std::int64_t>& indices);

  std::unique_ptr<Pass> pass_;
  std::shared_ptr<LoaderBase*> anchor_;
};

}  // namespace hasten::data

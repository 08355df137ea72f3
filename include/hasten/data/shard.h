#pragma once

#include <cstdint>
#include <vector>

namespace hasten::data {

/// How an epoch's order of samples is cut into the batches of one process.
struct ShardOptions {
  std::int64_t size = 0;           ///< samples in the epoch's order
  std::int64_t batch_size = 1;     ///< of one process, or of the whole step with `split_batches`
  std::int64_t num_processes = 1;  ///< processes that share the order
  std::int64_t rank = 0;           ///< which of them this is
  bool drop_last = false;          ///< leave out a last step that is not full on every process
  bool split_batches = false;      ///< `batch_size` is divided among the processes
  bool even_batches =
      true;                ///< fill the last step from the order's beginning, so that all have equal batches
  std::int64_t first = 0;  ///< samples at the front of the order that were used up before
};

/// Which positions of an epoch's order one process gets in each of its batches. Step k of all processes
/// together takes the next `global_batch_size()` positions, process 0 the first of them, and so on:
/// Accelerate's rule, whose two modes differ only in what `batch_size` means. Any batch is found without
/// those before it.
class Shard {
 public:
  /// Throws `kInvalidArgument` for a size or rank out of range, and for a split batch size that the number of
  /// processes does not divide, naming the two nearest that it does.
  explicit Shard(const ShardOptions& options);

  /// Batches this process gets. With `even_batches` or `drop_last` every process gets as many.
  [[nodiscard]] std::int64_t batches() const noexcept { return batches_; }
  /// Samples in a full batch of this process.
  [[nodiscard]] std::int64_t batch_size() const noexcept { return batch_size_; }
  /// Samples in a full step of all processes.
  [[nodiscard]] std::int64_t global_batch_size() const noexcept {
    return batch_size_ * options_.num_processes;
  }
  /// How many samples of the last step, over all processes in order of rank, are real and not copies that
  /// filled it: the full step when nothing was filled, 0 when there is no step.
  [[nodiscard]] std::int64_t remainder() const noexcept { return remainder_; }
  /// Samples that all processes together get, copies not counted.
  [[nodiscard]] std::int64_t samples() const noexcept;

  /// Replaces `out` by the positions of batch `batch`, which must lie in [0, batches()).
  void positions(std::int64_t batch, std::vector<std::int64_t>& out) const;
  [[nodiscard]] std::vector<std::int64_t> positions(std::int64_t batch) const;

  [[nodiscard]] const ShardOptions& options() const noexcept { return options_; }

 private:
  ShardOptions options_;
  std::int64_t batch_size_ = 1;
  std::int64_t steps_ = 0;
  std::int64_t batches_ = 0;
  std::int64_t remainder_ = 0;
};

}  // namespace hasten::data

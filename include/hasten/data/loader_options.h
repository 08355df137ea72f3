#pragma once

#include <cstdint>
#include <optional>

namespace hasten::data {

/// How a `Loader` reads. New fields are appended, since their order is part of the interface.
struct LoaderOptions {
  /// Samples in a batch of one process; of all processes together with `split_batches`.
  std::int64_t batch_size = 1;
  /// Another order each epoch, the same in every process.
  bool shuffle = false;
  /// Determines the orders, and the random augmentation of datasets that draw from their `BatchContext`.
  std::uint64_t seed = 0;
  /// Leave out the last samples of an epoch when they do not fill a batch in every process.
  bool drop_last = false;
  /// Threads that make batches ahead of the loop; 0 makes each batch when the loop asks for it. The batches
  /// are the same, in the same order, whatever the number.
  int workers = 0;
  /// Batches that each worker may be ahead.
  int prefetch = 2;
  /// `batch_size` is that of the whole step, divided among the processes, which must divide it.
  bool split_batches = false;
  /// With several processes: fill the last step with samples from the beginning of the order, so that all
  /// processes make equally many and equally large batches. Off, they may differ. One process never fills.
  bool even_batches = true;
  /// Copy batches to page-locked memory on their way to a device; unset: where the device wants it.
  std::optional<bool> pin_memory = std::nullopt;
  /// Let copies to a device overlap with the program where their memory allows it.
  bool non_blocking = true;
};

}  // namespace hasten::data

#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <hasten/base/error.h>

namespace hasten::data {

/// Why a batch could not be made.
struct Fault {
  ErrorCode code;
  std::string text;
};

/// Threads that make numbered batches ahead of the loop, each into a slot of its own, and hand them over in
/// order. Batch b lies in slot b % slots; the next use of a slot waits until the loop released the one
/// before. All public functions are for one thread, that of the loop.
class Workers {
 public:
  /// Makes batch `batch` in slot `slot`.
  using Make = std::function<std::optional<Fault>(int worker, std::int64_t batch, std::size_t slot)>;

  Workers(int count, std::size_t slots, Make make);
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  /// Starts making the batches [begin, end). Nothing may be in the making.
  void start(std::int64_t begin, std::int64_t end);
  /// Waits until the batch is made and returns its slot. Throws an `Error` if it could not be made.
  std::size_t wait(std::int64_t batch);
  /// The loop has emptied the slot of this batch.
  void release(std::int64_t batch);
  /// Starts no more batches and returns when none is in the making. Slots may be full then.
  void cancel();

 private:
  struct Slot {
    bool ready = false;
    std::optional<Fault> fault;
  };

  void run(int worker);
  void join() noexcept;
  [[nodiscard]] std::size_t slot_of(std::int64_t batch) const {
    return static_cast<std::size_t>(batch) % slots_.size();
  }
  [[nodiscard]] bool has_work() const {
    return next_ < end_ && next_ < released_ + static_cast<std::int64_t>(slots_.size());
  }

  const Make make_;
  std::mutex mutex_;
  std::condition_variable work_;   // a worker may have something to do
  std::condition_variable ready_;  // a batch was finished
  std::vector<Slot> slots_;
  std::int64_t next_ = 0;      // the first batch that nobody has begun
  std::int64_t end_ = 0;       // the first that is not wanted
  std::int64_t released_ = 0;  // the first that the loop still needs
  int making_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace hasten::data

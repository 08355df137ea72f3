#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <hasten/base/error.h>

#include "comm/reduce.h"

namespace hasten::comm {

/// Collectives between processes of one host through a piece of shared memory.
///
/// The memory is an anonymous file, so nothing is left behind however the processes end. Each rank has two
/// slots for data, used in turn: a rank that is at call n + 2 has seen all others begin call n + 1, so they
/// are done with call n, and its slot may be written again without a second barrier. Each rank holds a lock
/// on its own byte of the file; the kernel drops it when the process ends in any way, which is how waiting
/// ranks learn of it within milliseconds. (A child that a rank forked without `exec` keeps the lock; then the
/// time-out decides.) The first rank that finds a fault writes it into the segment; from then on every call
/// on every rank fails with it.
///
/// All ranks make the same calls in the same order, one thread at a time. Calls block. Errors: `kPeerLost`
/// when a rank is gone, `kTimeout` when one does not arrive, `kMismatch` when they call different things; the
/// text names the operation and the ranks.
class SharedSegment {
 public:
  struct Settings {
    int size = 1;                         ///< number of ranks
    std::size_t slot_bytes = 256 * 1024;  ///< longer data goes in parts of this size
  };

  /// Made by rank 0. Throws `kSystem` when the system has no memory for it.
  static std::unique_ptr<SharedSegment> create(const Settings& settings);
  /// The text by which `attach` finds the segment.
  [[nodiscard]] std::string ticket() const;
  /// Joins the others as rank 1, 2, ... while rank 0 still holds the segment. Throws `kUnavailable` when this
  /// process cannot reach it.
  static std::unique_ptr<SharedSegment> attach(int rank, const std::string& ticket);
  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  /// What a call is named in errors, and how long it may wait for the others.
  struct Call {
    std::string_view name;
    std::chrono::milliseconds timeout;
  };

  /// Replaces `data` by the reduction over all ranks: the same bits on each. `data` holds whole elements and
  /// is aligned to them.
  void all_reduce(const Call& call, std::span<std::byte> data, Element element, Reduction reduction);
  /// Replaces `data` by that of rank `root`.
  void broadcast(const Call& call, std::span<std::byte> data, int root);
  /// Fills outputs[r] with the `mine` of rank r, which must be equally long on all ranks.
  void all_gather(const Call& call, std::span<const std::byte> mine, std::span<std::byte* const> outputs);
  void barrier(const Call& call);

  /// The fault that ended this segment, if any.
  [[nodiscard]] std::optional<Error> failure() const;
  /// Throws the fault that ended this segment, if any, under the name of an operation.
  void throw_if_failed(std::string_view name) const;
  /// Ranks whose process has ended or left the group.
  [[nodiscard]] std::vector<int> lost() const;

 private:
  struct Header;
  struct Member;
  struct Step;

  SharedSegment(int rank, int descriptor, std::size_t mapped_bytes, std::byte* memory);
  void hold_lock();
  [[nodiscard]] bool is_gone(int rank) const;
  [[nodiscard]] Header& header() const;
  [[nodiscard]] Member& member(int rank) const;
  [[nodiscard]] std::byte* slot(int rank, std::uint64_t sequence) const;

  void begin(const Call& call, const Step& step, std::span<const std::byte> deposit);
  void check_agreement(const Call& call);
  template <class Arrived>
  void wait_for_all(const Call& call, Arrived arrived);
  void sleep_until_rung(const std::atomic<std::uint64_t>& awaited, std::uint64_t until,
                        std::chrono::milliseconds longest);
  void ring();
  void reduce_in_stripes(const Call& call, std::span<std::byte> data, Element element, Reduction reduction);
  [[noreturn]] void fail_all(ErrorCode code, const Call& call, const std::string& message);

  int rank_;
  int size_ = 0;
  int descriptor_;
  std::size_t mapped_bytes_;
  std::byte* memory_;
  std::uint64_t sequence_ = 0;
  int spins_ = 0;
};

/// How many cores this process may use.
[[nodiscard]] int usable_cores();

/// "rank 1", "ranks 0, 2".
[[nodiscard]] std::string ranks_text(const std::vector<int>& ranks);

}  // namespace hasten::comm

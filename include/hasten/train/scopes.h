#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <iterator>
#include <memory>

#include <hasten/train/options.h>

/// What Accelerate's `with` blocks are here: objects whose life is the block's.
namespace hasten {

namespace detail {
class Run;
void open_window(Run& run);
void close_window(Run& run) noexcept;
void forbid_synchronizing(Run& run, bool on) noexcept;
[[nodiscard]] bool is_main(const Run& run);
void wait_for_all(Run& run);
void release_others(Run& run) noexcept;
void begin_join(Run& run, const JoinOptions& options);
void end_join(Run& run);
void abandon_join(Run& run) noexcept;
void begin_epochs(Run& run, std::int64_t count);
[[nodiscard]] std::int64_t current_epoch(const Run& run);
[[nodiscard]] bool epochs_are_over(const Run& run);
void finish_epoch(Run& run);
}  // namespace detail

/// One micro-batch of an accumulation window. Gradients are reduced, and optimizers step, only in the
/// window's last.
class [[nodiscard]] AccumulationScope {
 public:
  explicit AccumulationScope(detail::Run& run) : run_(run) { detail::open_window(run_); }
  ~AccumulationScope() { detail::close_window(run_); }
  AccumulationScope(const AccumulationScope&) = delete;
  AccumulationScope& operator=(const AccumulationScope&) = delete;

 private:
  detail::Run& run_;
};

/// While it lives, backward passes add to this process's gradients without reducing them.
class [[nodiscard]] NoSyncScope {
 public:
  explicit NoSyncScope(detail::Run& run) : run_(run) { detail::forbid_synchronizing(run_, true); }
  ~NoSyncScope() { detail::forbid_synchronizing(run_, false); }
  NoSyncScope(const NoSyncScope&) = delete;
  NoSyncScope& operator=(const NoSyncScope&) = delete;

 private:
  detail::Run& run_;
};

/// A block that the main process, or those that are told that they are first, run before the others enter it.
class [[nodiscard]] MainProcessFirstScope {
 public:
  explicit MainProcessFirstScope(detail::Run& run) : MainProcessFirstScope(run, detail::is_main(run)) {}
  MainProcessFirstScope(detail::Run& run, bool first) : run_(run), first_(first) {
    if (!first_) detail::wait_for_all(run_);
  }
  ~MainProcessFirstScope() {
    if (first_) detail::release_others(run_);
  }
  MainProcessFirstScope(const MainProcessFirstScope&) = delete;
  MainProcessFirstScope& operator=(const MainProcessFirstScope&) = delete;

 private:
  detail::Run& run_;
  bool first_;
};

/// A block in which the ranks' loops may have different numbers of batches. A rank whose loop has ended waits
/// at the end of the block, and takes part in the others' reductions with gradients of zero. Then all ranks
/// take over the models, optimizers, schedules and scaler of a rank that made the most updates, so that they
/// are equal to the bit. Leaving the block throws what these exchanges throw; when an exception leaves it,
/// nothing is waited for.
class [[nodiscard]] JoinScope {
 public:
  JoinScope(detail::Run& run, const JoinOptions& options)
      : run_(run), exceptions_(std::uncaught_exceptions()) {
    detail::begin_join(run_, options);
  }
  ~JoinScope() noexcept(false) {
    if (std::uncaught_exceptions() > exceptions_) {
      detail::abandon_join(run_);
    } else {
      detail::end_join(run_);
    }
  }
  JoinScope(const JoinScope&) = delete;
  JoinScope& operator=(const JoinScope&) = delete;

 private:
  detail::Run& run_;
  int exceptions_;
};

/// The epochs that a run has left: `for (auto epoch : accelerator.epochs(10))`. After a resume it begins with
/// the epoch that was interrupted. It ends early, on all ranks at the same step, when the run is told to
/// stop.
class [[nodiscard]] Epochs {
 public:
  class Iterator {
   public:
    using iterator_concept = std::input_iterator_tag;
    using value_type = std::int64_t;
    using difference_type = std::ptrdiff_t;

    explicit Iterator(detail::Run* run) : run_(run) {}
    std::int64_t operator*() const { return detail::current_epoch(*run_); }
    Iterator& operator++() {
      detail::finish_epoch(*run_);
      return *this;
    }
    void operator++(int) { ++*this; }
    friend bool operator==(const Iterator& iterator, std::default_sentinel_t) {
      return detail::epochs_are_over(*iterator.run_);
    }

   private:
    detail::Run* run_;
  };

  Epochs(detail::Run& run, std::int64_t count) : run_(run) { detail::begin_epochs(run_, count); }
  [[nodiscard]] Iterator begin() const { return Iterator(&run_); }
  [[nodiscard]] std::default_sentinel_t end() const noexcept { return {}; }

 private:
  detail::Run& run_;
};

}  // namespace hasten

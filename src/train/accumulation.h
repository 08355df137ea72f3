#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>

#include <hasten/base/error.h>
#include <hasten/train/options.h>

namespace hasten::detail {

/// Counts the micro-batches of a window and says how each one's gradients count.
///
/// In a window of k micro-batches each loss is weighted 1/k. When the data ends after m < k, gradients so far
/// were weighted 1/k: under `ShortWindow::kMean` they are multiplied by k/m as the last micro-batch's
/// backward begins, and its own loss is weighted 1/m, so that the sum is the mean over m.
class Accumulation {
 public:
  /// With `ends_with_data` the end of the data completes a window that lacks micro-batches.
  Accumulation(std::int64_t steps, ShortWindow rule, bool ends_with_data)
      : steps_(steps), rule_(rule), ends_with_data_(ends_with_data) {
    require(steps >= 1, ErrorCode::kInvalidArgument, "Accelerator", "gradient_accumulation_steps is ", steps,
            ", but must be at least 1.");
  }

  void open(bool data_ends) {
    ++micro_batches_;
    complete_ = micro_batches_ >= steps_ || (data_ends && ends_with_data_);
    const bool is_short = complete_ && micro_batches_ < steps_ && rule_ == ShortWindow::kMean;
    divisor_ = is_short ? micro_batches_ : steps_;
    earlier_factor_ = is_short ? static_cast<double>(steps_) / static_cast<double>(micro_batches_) : 1.0;
    if (micro_batches_ == 1) earlier_factor_ = 1.0;
  }

  void close() noexcept {
    if (complete_) micro_batches_ = 0;
    complete_ = true;
    divisor_ = 1;
  }

  /// Forgets a window that will never be complete.
  void abandon() noexcept { micro_batches_ = 0; }

  /// Whether the present micro-batch is its window's last; true outside of windows.
  [[nodiscard]] bool complete() const noexcept { return complete_; }
  /// Whether no window has begun that still lacks micro-batches.
  [[nodiscard]] bool between_windows() const noexcept { return micro_batches_ == 0; }
  /// By what a loss is to be divided.
  [[nodiscard]] std::int64_t divisor() const noexcept { return divisor_; }
  /// By what the gradients of earlier micro-batches are to be multiplied, once a window: 1 afterwards.
  [[nodiscard]] double take_earlier_factor() noexcept {
    const double factor = earlier_factor_;
    earlier_factor_ = 1.0;
    return factor;
  }
  [[nodiscard]] std::int64_t steps() const noexcept { return steps_; }

 private:
  std::int64_t steps_;
  ShortWindow rule_;
  bool ends_with_data_;
  std::int64_t micro_batches_ = 0;
  bool complete_ = true;
  std::int64_t divisor_ = 1;
  double earlier_factor_ = 1.0;
};

/// Weighs losses that are sums over items, whose number over all micro-batches and ranks is known only when a
/// window ends. Until then each loss has about the weight that would have been right for the window before,
/// the same on all ranks, which keeps gradients at their usual size; then all gradients are multiplied by
/// what is missing. The weights are powers of two, which round nothing: a run that is resumed, and begins
/// with another one, comes to the same bits.
class ItemMean {
 public:
  /// A backward pass over so many items begins, or one that counts none.
  void add(std::optional<std::int64_t> items) {
    require(!items || *items >= 0, ErrorCode::kInvalidArgument, "backward", "the number of items is ",
            items.value_or(0), ", but must not be negative.");
    require(
        !counts_ || *counts_ == items.has_value(), ErrorCode::kInvalidArgument, "backward",
        "some backward passes of this window tell their items and some do not. Give BackwardOptions::items "
        "in all of them or in none.");
    counts_ = items.has_value();
    items_ += items.value_or(0);
  }
  /// The weight of each item's loss in the backward pass.
  [[nodiscard]] double weight() const noexcept { return weight_; }
  /// What this rank's backward passes of the window are over.
  [[nodiscard]] std::int64_t items() const noexcept { return items_; }
  /// What undoes the last `settle` of this window, before a further backward pass.
  [[nodiscard]] double undo() noexcept { return 1 / std::exchange(applied_, 1.0); }
  /// What the gradients, reduced to the mean of `ranks`, are to be multiplied by when all ranks together have
  /// had `total` items. Without any the sum is zero, and stays it.
  [[nodiscard]] double settle(std::int64_t total, int ranks) noexcept {
    if (total == 0) return 1;
    const double exact = static_cast<double>(ranks) / static_cast<double>(total);
    next_weight_ = std::exp2(std::round(std::log2(exact)));
    return applied_ = exact / weight_;
  }
  /// The optimizer has stepped: the next backward pass begins anew.
  void finish() noexcept {
    counts_.reset();
    items_ = 0;
    applied_ = 1;
    weight_ = next_weight_;
  }

 private:
  std::optional<bool> counts_;
  std::int64_t items_ = 0;
  double weight_ = 1;
  double next_weight_ = 1;
  double applied_ = 1;
};

}  // namespace hasten::detail

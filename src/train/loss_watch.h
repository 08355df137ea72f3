#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace hasten::detail {

/// Says once in a run, with the step and the rank, that a loss is not finite: every gradient after it is
/// lost, and what people notice is a curve that ends.
class LossWatch {
 public:
  /// A loss of this rank, of the update after `updates`. One that is in the CPU's memory is looked at; others
  /// wait for `look`.
  void see(const at::Tensor& loss, std::int64_t updates, int rank);
  /// Looks at the losses since the last look, by one read of the device. Called when values are read anyway.
  void look(int rank);

 private:
  void report(double loss, std::int64_t updates, int rank);

  bool reported_ = false;
  std::vector<std::pair<at::Tensor, std::int64_t>> waiting_;
};

}  // namespace hasten::detail

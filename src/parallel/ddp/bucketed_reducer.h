#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <hasten/comm/group.h>
#include <hasten/parallel/strategy.h>

namespace hasten::parallel {

/// c10d's Reducer behind an interface of our own: its constructor changes between LibTorch's releases, and
/// this is the one place that knows it. Averages gradients over ranks in buckets, while the backward pass is
/// still running.
class BucketedReducer {
 public:
  /// `parameters` require gradients and stand in the same order on all ranks.
  BucketedReducer(std::shared_ptr<comm::Group> group, const std::vector<const params::Parameter*>& parameters,
                  const DataParallelOptions& options);
  ~BucketedReducer();

  /// To be called right before a backward pass whose gradients are to be reduced.
  void arm(const at::Tensor& loss);

  /// To be called right after that pass. Throws `kMismatch` naming this rank and the parameters that had no
  /// part in the loss, when they are not searched for.
  void finish();

  /// What compression keeps between steps, by parameter.
  [[nodiscard]] params::NamedTensors compression_state() const;
  void load_compression_state(const params::NamedTensors& state);

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace hasten::parallel

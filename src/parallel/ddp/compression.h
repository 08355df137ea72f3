#pragma once

#include <memory>
#include <string>
#include <unordered_map>

#include <torch/csrc/distributed/c10d/comm.hpp>

#include <hasten/comm/group.h>
#include <hasten/parallel/strategy.h>

namespace hasten::parallel {

/// How a reducer's buckets of gradients are sent. The gradients of a bucket become their mean over the ranks.
class Compression : public c10d::CommHookInterface {
 public:
  at::Tensor parseHookResult(const c10::IValue& result) override {
    return c10d::detail::parseCppCommHookResult(result);
  }

  /// What it keeps from step to step, of this rank alone; for checkpoints.
  [[nodiscard]] virtual params::NamedTensors state() const { return {}; }
  /// Goes on from `state`.
  virtual void load_state(const params::NamedTensors& /*state*/) {}

 protected:
  explicit Compression(std::shared_ptr<comm::Group> group) : group_(std::move(group)) {}

  /// The mean of a buffer over the ranks, in place; returns at once.
  [[nodiscard]] c10::intrusive_ptr<c10::ivalue::Future> average(const at::Tensor& buffer) const;

  std::shared_ptr<comm::Group> group_;
};

/// Names of the parameters whose gradients are reduced.
using ParameterNames = std::unordered_map<const at::TensorImpl*, std::string>;

/// Null where gradients are sent as they are.
[[nodiscard]] std::unique_ptr<Compression> make_compression(std::shared_ptr<comm::Group> group,
                                                            const DataParallelOptions& options,
                                                            ParameterNames names);

}  // namespace hasten::parallel

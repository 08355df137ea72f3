#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include <hasten/params/parameter_set.h>

namespace torch::optim {
class Optimizer;
}
namespace hasten::comm {
class Group;
}

/// How a run is spread over processes. A run has one `Strategy`, chosen once; the rest of the library never
/// asks which.
namespace hasten::parallel {

/// How gradients are reduced when several processes hold the whole model. Names and defaults are those of
/// PyTorch's DistributedDataParallel unless said otherwise.
struct DataParallelOptions {
  bool find_unused_parameters =
      false;  ///< look for parameters that a loss does not reach; costs a walk a step
  bool gradient_as_bucket_view =
      true;                       ///< gradients are views of the reduction buffers: no second copy of them
  bool broadcast_buffers = true;  ///< buffers (batch norm's statistics) follow rank 0's
  bool static_graph = false;      ///< the same parameters are used in every step, each as often
  double bucket_cap_mb = 25;      ///< size of a reduction buffer, MiB
};

/// What a backward pass does beyond computing gradients.
struct BackwardOptions {
  bool retain_graph = false;  ///< keep the graph for another backward pass
  bool create_graph = false;  ///< make the gradients differentiable themselves
};

/// The strategy's side of one prepared model.
class Replica {
 public:
  virtual ~Replica() = default;
  /// Before each forward pass through the model's handle.
  virtual void before_forward() = 0;
};

class Strategy {
 public:
  virtual ~Strategy() = default;

  /// "solo", "data parallel": for messages and the closing report.
  [[nodiscard]] virtual std::string_view name() const = 0;

  /// Takes over a model whose tensors are on the run's device. All ranks must call it for the same models in
  /// the same order. The replica must not outlive the strategy's users; dropping it detaches the model.
  [[nodiscard]] virtual std::unique_ptr<Replica> attach(const params::ParameterSet& parameters) = 0;

  /// Takes over an optimizer before it has state; a strategy that shards may rewrite its groups here.
  virtual void attach(torch::optim::Optimizer& optimizer) = 0;

  /// Computes the gradients of `loss` times `weight` (1 when undefined; a 0-d tensor otherwise), added to
  /// what the parameters hold. With `synchronize` the gradients are the mean over ranks afterwards; without,
  /// they stay the rank's own, to be reduced by a later call.
  virtual void backward(const at::Tensor& loss, const at::Tensor& weight, bool synchronize,
                        const BackwardOptions& options) = 0;

  /// The norm of all gradients together, over ranks where they hold parts. A 0-d tensor; waits for nothing.
  [[nodiscard]] virtual at::Tensor gradient_norm(const std::vector<at::Tensor>& gradients,
                                                 double norm_type) const;

  /// Whether any rank found an infinity or NaN among the gradients it holds; `found` is 0-d, 0 or 1.
  [[nodiscard]] virtual bool any_nonfinite(const at::Tensor& found) const;
};

/// The strategy for a run over `group`: solo for one process, data parallel for more.
[[nodiscard]] std::unique_ptr<Strategy> make_strategy(std::shared_ptr<comm::Group> group,
                                                      const DataParallelOptions& data_parallel);

}  // namespace hasten::parallel

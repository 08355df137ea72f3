#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include <hasten/device/operator_hook.h>
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

/// In what form gradients are sent when several processes hold the whole model.
enum class GradientCompression {
  kNone,
  kBf16,     ///< rounded to bf16: half the bytes of fp32
  kFp16,     ///< rounded to fp16: the same, with more digits and less range
  kPowerSgd  ///< matrices as products of two thin ones; see `PowerSgdOptions`
};

/// Vogels, Karimireddy and Jaggi, arXiv:1905.13727. What an approximation leaves out is kept and added in the
/// next step. Names and defaults are those of PyTorch's PowerSGD hook.
struct PowerSgdOptions {
  std::int64_t rank = 1;           ///< columns of the thin matrices
  std::int64_t start_step = 1000;  ///< reductions that are sent in full first, while gradients change fast
  double least_saving = 2;  ///< a gradient whose factors are not this many times smaller is sent in full
};

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
  /// Batch norms take mean and variance over the batches of all ranks, as PyTorch's SyncBatchNorm. Every rank
  /// must run the same ones in the same order.
  bool sync_batch_norm = false;
  GradientCompression compression = GradientCompression::kNone;
  PowerSgdOptions power_sgd = {};
};

/// What a backward pass does beyond computing gradients.
struct BackwardOptions {
  bool retain_graph = false;  ///< keep the graph for another backward pass
  bool create_graph = false;  ///< make the gradients differentiable themselves
  /// For ranks whose data has ended, see `Strategy::begin_join`:
  bool counts_items = false;  ///< a reduction of the number of items follows
  bool starts_step = true;    ///< no gradient has been reduced since gradients were last dropped
};

/// What a rank without data learns of a reduced backward pass of the others.
struct AbsentRound {
  int active = 0;             ///< ranks that still have data; 0: no pass was made, all are done
  bool counts_items = false;  ///< as in their `BackwardOptions`
};

/// The strategy's side of one prepared model.
class Replica {
 public:
  virtual ~Replica() = default;
  /// Before each forward pass through the model's handle.
  virtual void before_forward() = 0;
  /// What sees the operators of forward passes; null where nothing has to.
  [[nodiscard]] virtual device::OperatorHook* operator_hook() { return nullptr; }
  /// The model's tensors replaced by those of a rank.
  virtual void copy_from(int rank) = 0;
  /// Parameters and floating-point buffers replaced by their means over the ranks.
  virtual void average() = 0;
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
  /// they stay the rank's own, to be reduced by a later call. Returns what the sum over ranks was divided by;
  /// 1 where nothing was reduced.
  virtual int backward(const at::Tensor& loss, const at::Tensor& weight, bool synchronize,
                       const BackwardOptions& options) = 0;

  /// From here to `end_join` ranks may run out of data at different steps: each reduced backward pass is told
  /// to all ranks, and a rank that has no more calls `backward_without_data` until no rank is active.
  /// Gradients are the sum over active ranks, divided by the number of all ranks, or with `divide_by_active`
  /// of the active ones.
  virtual void begin_join(bool /*divide_by_active*/) {}
  [[nodiscard]] virtual AbsentRound backward_without_data() { return {}; }
  virtual void end_join() {}

  /// What this rank alone keeps between steps (the errors of compression), for its part of a checkpoint.
  [[nodiscard]] virtual params::NamedTensors rank_state() const { return {}; }
  virtual void load_rank_state(const params::NamedTensors& /*state*/) {}

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

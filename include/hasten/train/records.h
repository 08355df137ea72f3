#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include <hasten/data/loader_base.h>
#include <hasten/device/operator_hook.h>
#include <hasten/precision/autocast.h>

namespace torch::nn {
class Module;
}
namespace torch::optim {
class LRScheduler;
class Optimizer;
}  // namespace torch::optim
namespace hasten::optim {
class ReduceOnPlateau;
}

/// What stands behind the prepared handles. Not for users.
namespace hasten::detail {

class Run;
class ModelRecord;
class OptimizerRecord;
class SchedulerRecord;
class PlateauRecord;
class LoaderRecord;

[[nodiscard]] std::shared_ptr<ModelRecord> attach(Run& run, std::shared_ptr<torch::nn::Module> module);
[[nodiscard]] std::shared_ptr<OptimizerRecord> attach(Run& run, torch::optim::Optimizer& optimizer);
[[nodiscard]] std::shared_ptr<SchedulerRecord> attach(Run& run, torch::optim::LRScheduler& scheduler);
[[nodiscard]] std::shared_ptr<PlateauRecord> attach(Run& run, optim::ReduceOnPlateau& plateau);
[[nodiscard]] std::shared_ptr<LoaderRecord> attach(Run& run, data::LoaderBase& loader);
/// Checks what can only be checked when all things of one `prepare` are known.
void finish_attaching(Run& run);

/// Surrounds a forward pass of a prepared model.
class ForwardScope {
 public:
  explicit ForwardScope(ModelRecord& record);
  /// Whether outputs are to be converted to fp32.
  [[nodiscard]] bool converts_outputs() const noexcept { return precision_ != Precision::kNo; }

 private:
  Precision precision_;
  precision::Autocast autocast_;
  device::OperatorHookScope fp32_;
  device::OperatorHookScope strategy_;
};

/// Whether the model's layout was chosen for it and no forward pass has shown yet that its code can work with
/// it: a `view` that joins channels with rows cannot.
[[nodiscard]] bool layout_is_on_trial(const ModelRecord& record) noexcept;

/// Surrounds the pass that shows it. Ends the trial when the pass succeeds.
class LayoutTrial {
 public:
  explicit LayoutTrial(ModelRecord& record);
  ~LayoutTrial();
  LayoutTrial(const LayoutTrial&) = delete;
  LayoutTrial& operator=(const LayoutTrial&) = delete;

 private:
  ModelRecord& record_;
  int exceptions_;
};

/// Whether the layout was the reason of a failed pass. If so the model is laid out as it was built, and its
/// buffers and the random state are those from before the pass, so that it can be run again.
[[nodiscard]] bool give_up_layout(ModelRecord& record, const std::exception& error);

/// Throws what LibTorch said of a forward pass as an `Error` without the list of stack frames: of code
/// `kUnavailable`, naming the operator, where it cannot compute in this run's precision, else of code
/// `kMismatch`, naming the inputs. Rethrows what is no fault of the inputs: memory that ran out, a lost rank,
/// an exception that is not LibTorch's.
[[noreturn]] void fail_forward(const ModelRecord& record, const std::exception& error,
                               const std::vector<at::Tensor>& inputs);

void step(OptimizerRecord& record, const std::function<at::Tensor()>* closure, at::Tensor* loss);
void zero_grad(OptimizerRecord& record);
[[nodiscard]] bool step_was_skipped(const OptimizerRecord& record);
void step(SchedulerRecord& record);
bool step(PlateauRecord& record, double metric);
[[nodiscard]] std::vector<at::Tensor> parameters_of(const ModelRecord& record);

}  // namespace hasten::detail

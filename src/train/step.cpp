#include <cmath>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/tensor.h>

#include <hasten/base/error.h>
#include <hasten/device/device.h>
#include <hasten/parallel/gradients.h>

#include "train/faults.h"
#include "train/rank_check.h"
#include "train/run.h"

/// Backward passes, clipping, and updates.
namespace hasten {
namespace detail {
namespace {

/// Multiplies the gradients that all models hold.
void multiply_gradients(Run& run, double factor) {
  if (factor == 1.0) return;
  run.models.for_each([&](const ModelRecord& model) {
    parallel::multiply_(parallel::gradients_of(model.parameters.trainable()), factor);
  });
}

/// What the gradient of a loss starts from: its share of the window, times the loss scale. Undefined where
/// that is 1.
at::Tensor loss_weight(const Run& run, const at::Tensor& loss, double share) {
  const double weight = run.scaler ? run.backward_scale * share : share;
  if (weight == 1.0) return {};
  return at::full({}, weight, loss.options()).expand(loss.sizes());
}

int steps_of_an_update(const Run& run) {
  if (run.options.schedule_unit == ScheduleUnit::kUpdates) return 1;
  const bool split = run.loaders.find([](const LoaderRecord& record) {
    return *record.anchor != nullptr && record.loader->options().split_batches;
  }) != nullptr;
  return split ? 1 : run.process.world_size;
}

[[noreturn]] void fail_nonfinite(const Run& run, const std::vector<at::Tensor>& parameters, double norm) {
  std::string names;
  std::size_t number = 0;
  for (const at::Tensor& parameter : parameters) {
    const at::Tensor& gradient = parameter.grad();
    const std::size_t index = number++;
    if (!gradient.defined()) continue;
    const at::Tensor values = gradient.is_sparse() ? gradient.coalesce().values() : gradient;
    if (values.isfinite().all().item<bool>()) continue;
    names += (names.empty() ? "" : ", ") + run.name_of(parameter, index);
  }
  fail(ErrorCode::kFailedPrecondition, "clip_grad_norm_", "the norm of the gradients is ", norm,
       "; those of parameter ", names.empty() ? "none alone: their squares overflow" : names,
       " are not finite. Look at the batch, lower the learning rate, or leave error_if_nonfinite off.");
}

void update_scaler(Run& run, bool found_nonfinite) {
  // Once a backward, however many optimizers step on its gradients; a later find still shrinks the scale.
  if (run.scaler_updated && (!found_nonfinite || run.scaler_saw_nonfinite)) return;
  run.scaler->update(found_nonfinite);
  run.scaler_updated = true;
  run.scaler_saw_nonfinite = found_nonfinite;
}

}  // namespace

void Run::unscale_gradients() {
  if (!scaler) return;
  optimizers.for_each([&](OptimizerRecord& record) {
    if (record.unscaled) return;
    record.found_nonfinite =
        precision::GradScaler::unscale(parallel::gradients_of(record.parameters()), backward_scale, device);
    record.unscaled = true;
  });
}

std::string Run::name_of(const at::Tensor& parameter, std::size_t number) const {
  std::string name = concat("number ", number);
  models.for_each([&](const ModelRecord& model) {
    if (const auto* known = model.parameters.find(parameter)) name = "'" + known->name + "'";
  });
  return name;
}

std::int64_t Run::sum_of_items() {
  return group->all_reduce(at::tensor({item_mean.items()}, at::kLong), comm::ReduceOp::kSum)
      .item<std::int64_t>();
}

void step(OptimizerRecord& record, const std::function<at::Tensor()>* closure, at::Tensor* loss) {
  Run& run = *record.run;
  record.skipped = false;
  if (!run.accumulation.complete()) {
    if (closure != nullptr) *loss = (*closure)();
    return;
  }
  if (run.scaler) {
    require(
        closure == nullptr, ErrorCode::kFailedPrecondition, "step",
        "an optimizer that runs a closure cannot work with fp16's loss scaling, which must see the gradients "
        "between the closure and the update. Use bf16 or no mixed precision.");
    run.unscale_gradients();
    // Gradients that were not reduced differ between ranks, and so may what is found in them.
    if (run.no_sync_scopes > 0)
      record.found_nonfinite = run.group->all_reduce(record.found_nonfinite, comm::ReduceOp::kMax);
    record.skipped = run.strategy->any_nonfinite(record.found_nonfinite);
    update_scaler(run, record.skipped);
    if (record.skipped) {
      run.item_mean.finish();
      return;
    }
  }
  const bool checks = run.options.debug && run.no_sync_scopes == 0 && !run.joining;
  if (checks) require_equal_on_all_ranks(run, record, Compared::kGradients);
  if (closure != nullptr) {
    *loss = record.stepper->step(*closure);
  } else {
    record.stepper->step();
  }
  if (checks) require_equal_on_all_ranks(run, record, Compared::kWeights);
  run.item_mean.finish();
  device::backend(run.device).step_boundary();
  run.updates = std::max(run.updates, ++record.updates);
}

void zero_grad(OptimizerRecord& record) {
  if (!record.run->accumulation.complete()) return;
  record.stepper->zero_grad();
  record.run->reduced_gradients = false;
  record.run->item_mean.finish();  // also where the update was left out by the program
}

bool step_was_skipped(const OptimizerRecord& record) {
  return record.skipped;
}

void step(SchedulerRecord& record) {
  Run& run = *record.run;
  if (!run.options.step_scheduler_with_optimizer) {
    record.scheduler->step();
    return;
  }
  if (!run.accumulation.complete()) return;
  // Which optimizer a scheduler of LibTorch's drives cannot be asked; it rests when every optimizer did.
  bool any_updated = false;
  bool any = false;
  run.optimizers.for_each([&](const OptimizerRecord& optimizer) {
    any = true;
    any_updated = any_updated || !optimizer.skipped;
  });
  if (any && !any_updated) return;
  for (int left = steps_of_an_update(run); left > 0; --left) record.scheduler->step();
}

bool step(PlateauRecord& record, double metric) {
  const at::Tensor mean =
      record.run->group->all_reduce(at::tensor(metric, at::kDouble), comm::ReduceOp::kMean);
  return record.plateau->step(mean.item<double>());
}

}  // namespace detail

void Accelerator::backward(const at::Tensor& loss, const BackwardOptions& options) {
  detail::Run& run = *run_;
  require(loss.defined() && loss.requires_grad(), ErrorCode::kInvalidArgument, "backward",
          "the loss does not depend on any parameter that requires a gradient. Compute it from a prepared "
          "model's output, outside of NoGradGuard.");
  require(loss.device().type() == run.device.type(), ErrorCode::kInvalidArgument, "backward",
          "the loss is on ", loss.device(), ", but this run computes on ", run.device,
          ". Make the tensors it comes from on accelerator.device().");
  if (run.scaler) {
    run.backward_scale = run.scaler->scale();
    run.scaler_updated = false;
    run.scaler_saw_nonfinite = false;
    run.optimizers.for_each([](detail::OptimizerRecord& record) { record.unscaled = false; });
  }
  const bool complete = run.accumulation.complete();
  const bool synchronize = std::exchange(run.sync_next_backward, false) ||
                           ((complete || run.options.sync_each_batch) && run.no_sync_scopes == 0);
  run.loss_watch.see(loss, run.updates, run.process.rank);
  run.item_mean.add(options.items);
  // The gradients of earlier micro-batches are brought to the weight that the window gives them.
  const double of_short_window = run.accumulation.take_earlier_factor();
  const double share =
      options.items ? run.item_mean.weight() : 1.0 / static_cast<double>(run.accumulation.divisor());
  detail::multiply_gradients(run, options.items ? run.item_mean.undo() : of_short_window);
  int divisor = 1;
  try {
    divisor = run.strategy->backward(loss, detail::loss_weight(run, loss, share), synchronize,
                                     {.retain_graph = options.retain_graph,
                                      .create_graph = options.create_graph,
                                      .counts_items = options.items && complete,
                                      .starts_step = !run.reduced_gradients});
  } catch (const std::exception& error) {
    detail::require_operator(run, "backward", error);
    throw;
  }
  run.reduced_gradients = run.reduced_gradients || synchronize;
  if (options.items && complete && run.no_sync_scopes == 0)
    detail::multiply_gradients(run, run.item_mean.settle(run.sum_of_items(), divisor));
}

void Accelerator::trigger_sync_in_backward() {
  run_->sync_next_backward = true;
}

void Accelerator::unscale_gradients() {
  run_->unscale_gradients();
}

at::Tensor Accelerator::clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                                        double norm_type, bool error_if_nonfinite) {
  require(max_norm > 0 && norm_type > 0, ErrorCode::kInvalidArgument, "clip_grad_norm_", "max_norm is ",
          max_norm, " and norm_type is ", norm_type, ", but both must be positive.");
  const bool complete = run_->accumulation.complete();
  if (complete) run_->unscale_gradients();
  const auto gradients = parallel::gradients_of(parameters);
  at::Tensor total = run_->strategy->gradient_norm(gradients, norm_type);
  if (error_if_nonfinite && !std::isfinite(total.item<double>()))
    detail::fail_nonfinite(*run_, parameters, total.item<double>());
  if (complete) parallel::clip_to_norm_(gradients, total, max_norm);
  return total;
}

void Accelerator::clip_grad_value_(const std::vector<at::Tensor>& parameters, double limit) {
  require(limit > 0, ErrorCode::kInvalidArgument, "clip_grad_value_", "the limit is ", limit,
          ", but must be positive.");
  if (!run_->accumulation.complete()) return;
  run_->unscale_gradients();
  parallel::clip_to_value_(parallel::gradients_of(parameters), limit);
}

bool Accelerator::optimizer_step_was_skipped() const {
  return run_->optimizers.find([](const detail::OptimizerRecord& record) { return record.skipped; }) !=
         nullptr;
}

}  // namespace hasten

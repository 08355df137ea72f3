#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>

#include <hasten/base/error.h>
#include <hasten/device/device.h>
#include <hasten/train/accelerator.h>

#include "train/run.h"

/// The Accelerator's smaller services.
namespace hasten {

void set_seed(std::uint64_t seed) {
  device::seed(seed);
}

void Accelerator::set_seed(std::uint64_t seed, bool device_specific) const {
  hasten::set_seed(device_specific ? seed + static_cast<std::uint64_t>(run_->process.rank) : seed);
}

void Accelerator::set_trigger() {
  run_->trigger = true;
}

bool Accelerator::check_trigger() {
  const at::Tensor any =
      run_->group->all_reduce(at::tensor({run_->trigger ? 1 : 0}, at::kLong), comm::ReduceOp::kMax);
  run_->trigger = run_->trigger && any.item<std::int64_t>() == 0;
  return any.item<std::int64_t>() != 0;
}

void Accelerator::release_memory() const {
  precision::clear_cast_cache();
  for (const device::Backend* backend : device::backends()) backend->release_memory();
}

void Accelerator::skip_first_batches(detail::LoaderRecord& record, std::int64_t count) const {
  require(count >= 0 && count <= record.loader->batches(), ErrorCode::kInvalidArgument, "skip_first_batches",
          "there are ", record.loader->batches(), " batches in the loader, of which ", count,
          " cannot be skipped.");
  record.loader->skip_to(count);
}

std::int64_t Accelerator::rows_that_count(std::int64_t rows) const {
  const data::LoaderBase* loader = run_->current_loader();
  if (loader == nullptr || !loader->is_last_batch() || !loader->options().even_batches) return rows;
  return std::clamp<std::int64_t>(loader->remainder() - run_->process.rank * rows, 0, rows);
}

at::Tensor Accelerator::weighted_mean(const at::Tensor& value, double weight) const {
  require(weight >= 0, ErrorCode::kInvalidArgument, "weighted_mean", "the weight is ", weight,
          ", but must not be negative.");
  require(!c10::isIntegralType(value.scalar_type(), true) && !value.is_complex(), ErrorCode::kInvalidArgument,
          "weighted_mean", "a tensor of type ", value.scalar_type(),
          " has no weighted mean. Convert it to floats.");
  const at::NoGradGuard no_grad;
  // A rank without weight counts nothing, also where its own mean, of nothing, is NaN.
  const at::Tensor share = weight == 0 ? at::zeros_like(value, at::kDouble) : value.to(at::kDouble) * weight;
  const at::Tensor sums = run_->group->all_reduce(
      at::cat({share.flatten(), at::full({1}, weight, share.options())}), comm::ReduceOp::kSum);
  const std::int64_t last = sums.numel() - 1;
  return (sums.narrow(0, 0, last) / sums[last]).view(value.sizes()).to(value.scalar_type());
}

double Accelerator::compute(const metrics::Metric& metric) const {
  // Ranks that counted nothing have their sums on the CPU.
  return metric.value_of(run_->group->all_reduce(metric.sums().to(run_->device), comm::ReduceOp::kSum));
}

}  // namespace hasten

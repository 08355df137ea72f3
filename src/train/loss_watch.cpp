#include "train/loss_watch.h"

#include <cmath>

#include <ATen/ops/stack.h>

#include <hasten/base/error.h>
#include <hasten/base/log.h>

namespace hasten::detail {
namespace {

/// More than are kept between two looks.
constexpr std::size_t kMostWaiting = 1000;

/// The first number of a tensor in the CPU's memory.
double first_number(const at::Tensor& tensor) {
  if (tensor.scalar_type() == at::kFloat) return *tensor.const_data_ptr<float>();
  if (tensor.scalar_type() == at::kDouble) return *tensor.const_data_ptr<double>();
  return at::isComplexType(tensor.scalar_type()) ? 0.0 : tensor.item<double>();
}

}  // namespace

void LossWatch::see(const at::Tensor& loss, std::int64_t updates, int rank) {
  if (reported_ || loss.numel() != 1) return;
  if (loss.is_cpu()) {
    if (const double value = first_number(loss); !std::isfinite(value)) report(value, updates, rank);
    return;
  }
  if (waiting_.size() == kMostWaiting) look(rank);
  waiting_.emplace_back(loss.detach().flatten(), updates);
}

void LossWatch::look(int rank) {
  if (waiting_.empty()) return;
  std::vector<at::Tensor> losses;
  for (const auto& [loss, updates] : waiting_) losses.push_back(loss.to(at::kFloat));
  const at::Tensor values = at::stack(losses).cpu();
  for (std::size_t i = 0; i < waiting_.size() && !reported_; ++i)
    if (const float value = values.const_data_ptr<float>()[i]; !std::isfinite(value))
      report(value, waiting_[i].second, rank);
  waiting_.clear();
}

void LossWatch::report(double loss, std::int64_t updates, int rank) {
  reported_ = true;
  log::warning(
      concat("rank ", rank, ": the loss of step ", updates + 1, " is ", std::isnan(loss) ? "nan" : "infinite",
             ", so the weights will be lost too. Look at that batch, lower the learning rate, or clip "
             "gradients. Said once in a run."));
}

}  // namespace hasten::detail

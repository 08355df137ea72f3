#include <algorithm>
#include <cmath>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <hasten/base/error.h>
#include <hasten/metrics/metrics.h>

namespace hasten::metrics {
namespace {

/// Classes {N}, from classes or scores with one more dimension. Both flattened.
std::pair<at::Tensor, at::Tensor> classes_of(const char* metric, const at::Tensor& predictions,
                                             const at::Tensor& targets) {
  const bool scores = predictions.dim() == targets.dim() + 1;
  const at::Tensor classes = scores ? predictions.argmax(-1) : predictions;
  require(
      classes.sizes() == targets.sizes(), ErrorCode::kMismatch, metric, "predictions have shape ",
      predictions.sizes(), " and targets ", targets.sizes(),
      ". Give classes of the targets' shape, or scores with one more dimension, the classes, at the end.");
  return {classes.flatten(), targets.flatten().to(classes.device())};
}

at::Tensor total(const at::Tensor& values) {
  return values.sum(at::kDouble);
}

/// The sum and the number of elements.
at::Tensor sum_and_count(const at::Tensor& hits) {
  return at::stack({total(hits), total(at::ones_like(hits, at::kDouble))});
}

double f1(double true_positives, double false_positives, double false_negatives) {
  const double whole = 2 * true_positives + false_positives + false_negatives;
  return whole == 0 ? 0 : 2 * true_positives / whole;
}

}  // namespace

at::Tensor Metric::sums() const {
  return sums_.defined() ? sums_ : at::zeros({size_}, at::kDouble);
}

double Metric::value_of(const at::Tensor& sums) const {
  const at::Tensor host = sums.to(at::kCPU, at::kDouble).contiguous();
  require(host.numel() == size_, ErrorCode::kMismatch, "metric", host.numel(),
          " sums were given, but this metric "
          "has ",
          size_, ".");
  return from_sums(host.const_data_ptr<double>());
}

void Metric::add(const at::Tensor& sums) {
  sums_ = sums_.defined() ? sums_ + sums : sums;
}

void Accuracy::update(const at::Tensor& predictions, const at::Tensor& targets) {
  const at::NoGradGuard no_grad;
  const auto [predicted, wanted] = classes_of("Accuracy", predictions, targets);
  add(sum_and_count(predicted.eq(wanted)));
}

TopK::TopK(std::int64_t k) : Metric(2), k_(k) {
  require(k >= 1, ErrorCode::kInvalidArgument, "TopK", "k is ", k, ", but must be at least 1.");
}

void TopK::update(const at::Tensor& scores, const at::Tensor& targets) {
  const at::NoGradGuard no_grad;
  require(
      scores.dim() == 2 && targets.dim() == 1 && scores.size(0) == targets.size(0) && scores.size(1) >= k_,
      ErrorCode::kMismatch, "TopK", "scores have shape ", scores.sizes(), " and targets ", targets.sizes(),
      ". Give scores {N, C} with C of at least ", k_, ", and targets {N}.");
  const at::Tensor best = std::get<1>(scores.topk(k_, 1));
  add(sum_and_count(best.eq(targets.to(best.device()).unsqueeze(1)).any(1)));
}

void Mean::update(const at::Tensor& values, const at::Tensor& weights) {
  const at::NoGradGuard no_grad;
  if (!weights.defined()) return add(sum_and_count(values));
  require(values.sizes() == weights.sizes(), ErrorCode::kMismatch, "Mean", "values have shape ",
          values.sizes(), " and weights ", weights.sizes(), ". Give a weight for each value.");
  const at::Tensor wide = weights.to(values.device(), at::kDouble);
  const at::Tensor counted = at::where(wide.eq(0), at::zeros_like(wide), values.to(at::kDouble) * wide);
  add(at::stack({total(counted), total(wide)}));
}

void Perplexity::update(const at::Tensor& scores, const at::Tensor& targets) {
  const at::NoGradGuard no_grad;
  require(scores.dim() == targets.dim() + 1 && scores.sizes().slice(0, targets.dim()) == targets.sizes(),
          ErrorCode::kMismatch, "Perplexity", "scores have shape ", scores.sizes(), " and targets ",
          targets.sizes(), ". Give scores {..., V} and targets {...}.");
  const at::Tensor wanted = targets.to(scores.device());
  const at::Tensor counts = wanted.ne(ignore_index_);
  // In fp32 at least: the logarithms of half precision have three digits.
  const at::ScalarType type = scores.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor chances = at::log_softmax(scores, -1, type);
  const at::Tensor chosen =
      chances.gather(-1, at::where(counts, wanted, at::zeros_like(wanted)).unsqueeze(-1)).squeeze(-1);
  add(at::stack({-total(at::where(counts, chosen, at::zeros_like(chosen))), total(counts)}));
}

double Perplexity::from_sums(const double* sums) const {
  return std::exp(sums[0] / sums[1]);
}

F1::F1(std::int64_t classes, Averaging averaging)
    : Metric(3 * classes), classes_(classes), averaging_(averaging) {
  require(classes >= 2 && (averaging != Averaging::kBinary || classes == 2), ErrorCode::kInvalidArgument,
          "F1", "the number of classes is ", classes, ". Give at least 2, and 2 for Averaging::kBinary.");
}

void F1::update(const at::Tensor& predictions, const at::Tensor& targets) {
  const at::NoGradGuard no_grad;
  const auto [predicted, wanted] = classes_of("F1", predictions, targets);
  const auto count = [&](const at::Tensor& classes) {
    return classes.to(at::kLong).bincount({}, classes_).narrow(0, 0, classes_).to(at::kDouble);
  };
  // Classes of hits, of predictions and of targets; the misses follow from these.
  const at::Tensor hits = wanted.masked_select(predicted.eq(wanted));
  add(at::cat({count(hits), count(predicted), count(wanted)}));
}

double F1::from_sums(const double* sums) const {
  double all_hits = 0;
  double all_predicted = 0;
  double all_wanted = 0;
  double macro = 0;
  double weighted = 0;
  double present = 0;
  for (std::int64_t i = 0; i < classes_; ++i) {
    const double hits = sums[i];
    const double predicted = sums[classes_ + i];
    const double wanted = sums[2 * classes_ + i];
    all_hits += hits;
    all_predicted += predicted;
    all_wanted += wanted;
    const double value = f1(hits, predicted - hits, wanted - hits);
    if (averaging_ == Averaging::kBinary && i == 1)
      return predicted + wanted + all_wanted == 0 ? std::nan("") : value;
    macro += value;
    weighted += value * wanted;
    present += predicted + wanted > 0 ? 1 : 0;
  }
  switch (averaging_) {
    case Averaging::kMicro:
      return all_wanted == 0 ? std::nan("") : f1(all_hits, all_predicted - all_hits, all_wanted - all_hits);
    case Averaging::kWeighted:
      return weighted / all_wanted;
    default:
      return macro / present;
  }
}

}  // namespace hasten::metrics

#pragma once

#include <cstdint>
#include <limits>
#include <optional>

#include <ATen/core/Tensor.h>

/// Metrics of an evaluation as sums over its samples: they grow on the device, batch after batch, without
/// waiting for it, and are reduced over the ranks and read once, at the end. `Accelerator::update` leaves out
/// rows that stand for repeated samples, `Accelerator::compute` reduces.
namespace hasten::metrics {

class Metric {
 public:
  virtual ~Metric() = default;

  /// The sums so far, {n}, float64, on the device of what was counted; zeros on the CPU before that.
  [[nodiscard]] at::Tensor sums() const;
  /// The metric of such sums, which may be those of several processes added up. Waits for their device.
  /// NaN where nothing was counted.
  [[nodiscard]] double value_of(const at::Tensor& sums) const;
  /// That of what this process counted.
  [[nodiscard]] double compute() const { return value_of(sums()); }
  /// Begins anew.
  void reset() { sums_.reset(); }

 protected:
  explicit Metric(std::int64_t size) : size_(size) {}
  void add(const at::Tensor& sums);
  /// From the sums, {n} doubles on the host.
  [[nodiscard]] virtual double from_sums(const double* sums) const = 0;
  [[nodiscard]] std::int64_t size() const noexcept { return size_; }

 private:
  std::int64_t size_;
  at::Tensor sums_;
};

/// The part of samples whose class was predicted.
class Accuracy : public Metric {
 public:
  Accuracy() : Metric(2) {}
  /// `predictions`: classes {N}, or scores {N, C} of which the highest counts; `targets`: classes {N}. Any
  /// number of dimensions may stand between N and C. Throws `kMismatch` for shapes that do not fit.
  void update(const at::Tensor& predictions, const at::Tensor& targets);

 protected:
  double from_sums(const double* sums) const override { return sums[0] / sums[1]; }
};

/// The part of samples whose class is among the `k` highest scores.
class TopK : public Metric {
 public:
  /// Throws `kInvalidArgument` for k below 1.
  explicit TopK(std::int64_t k);
  /// `scores` {N, C}, `targets` {N}. Throws `kMismatch` for shapes that do not fit, or fewer than k classes.
  void update(const at::Tensor& scores, const at::Tensor& targets);

 protected:
  double from_sums(const double* sums) const override { return sums[0] / sums[1]; }

 private:
  std::int64_t k_;
};

/// A mean, of losses for instance.
class Mean : public Metric {
 public:
  Mean() : Metric(2) {}
  /// Every element counts once, or `weights` times, a tensor of their shape. A weight of 0 counts nothing,
  /// whatever the value is.
  void update(const at::Tensor& values, const at::Tensor& weights = {});

 protected:
  double from_sums(const double* sums) const override { return sums[0] / sums[1]; }
};

/// exp of the mean negative log-likelihood of tokens.
class Perplexity : public Metric {
 public:
  /// Targets equal to `ignore_index` count nothing.
  explicit Perplexity(std::int64_t ignore_index = -100) : Metric(2), ignore_index_(ignore_index) {}
  /// `scores` {..., V}, unnormalised, for each token; `targets` {...}.
  void update(const at::Tensor& scores, const at::Tensor& targets);

 protected:
  double from_sums(const double* sums) const override;

 private:
  std::int64_t ignore_index_;
};

/// How F1 of several classes becomes one number; names and formulas are scikit-learn's.
enum class Averaging {
  kBinary,   ///< that of class 1, of two
  kMicro,    ///< of all classes' counts together
  kMacro,    ///< the mean over the classes that occur in targets or predictions
  kWeighted  ///< the mean over classes, weighted by how often each is the target
};

/// 2 TP / (2 TP + FP + FN); 0 for a class that is neither predicted nor the target.
class F1 : public Metric {
 public:
  /// Throws `kInvalidArgument` for fewer than 2 classes, or more in `kBinary`.
  explicit F1(std::int64_t classes = 2, Averaging averaging = Averaging::kMacro);
  /// As `Accuracy::update`.
  void update(const at::Tensor& predictions, const at::Tensor& targets);

 protected:
  double from_sums(const double* sums) const override;

 private:
  std::int64_t classes_;
  Averaging averaging_;
};

}  // namespace hasten::metrics

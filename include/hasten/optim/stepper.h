#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::optim {
class Optimizer;
}

namespace hasten::optim {

/// How this library drives one `torch::optim::Optimizer`.
///
/// The optimizer, its groups, options and state stay LibTorch's own objects: a learning rate set between two
/// steps is seen, and `optimizer.step()` and this class can alternate in any order. Not thread-safe, as the
/// optimizer.
class Stepper {
 public:
  using Closure = std::function<at::Tensor()>;

  /// Chooses by the optimizer's exact type. SGD, Adam, AdamW and Adagrad step by ATen's fused kernels,
  /// RMSprop by its foreach operations; values are those of PyTorch's Python optimizers (proved to a relative
  /// 1e-10 in float64), complex parameters included, where LibTorch's own Adam differs from Python's. Every
  /// other optimizer, a subclass of these five among them, steps as itself. So does one of the five for a
  /// step that its kernel cannot take: a sparse gradient, a parameter whose memory has gaps or whose dtype is
  /// no float, a device without the kernel, half precision under SGD on the CPU. The optimizer is borrowed
  /// and must outlive the result.
  ///
  /// With `fp32_master_weights`, parameters in half precision are updated in fp32: the optimizer sees, for
  /// the time of a step, an fp32 copy in each one's place, which is kept from step to step, and its gradient
  /// in fp32, and keeps its state in fp32. The parameter is then the rounded copy. A parameter that was
  /// changed from outside since is copied anew.
  [[nodiscard]] static std::unique_ptr<Stepper> make(torch::optim::Optimizer& optimizer,
                                                     bool fp32_master_weights = false);

  virtual ~Stepper() = default;
  Stepper(const Stepper&) = delete;
  Stepper& operator=(const Stepper&) = delete;

  /// One update of every parameter that has a gradient; the others are left alone. A gradient of another
  /// dtype, device or memory layout than its parameter's is converted, and so is state left over from before
  /// a model was moved or converted. Throws `kMismatch` for a gradient of another shape than its parameter,
  /// and `kFailedPrecondition` for an optimizer that needs a closure.
  virtual void step() = 0;

  /// Runs `closure` with gradients enabled, then updates; returns what the closure returned. An optimizer
  /// that steps as itself is given the closure, and may call it several times (LBFGS). An empty closure is
  /// `step()`.
  virtual at::Tensor step(const Closure& closure);

  /// Makes the gradients of all parameters undefined. Unlike `torch::optim::Optimizer::zero_grad` it works on
  /// gradients that are views into a bucket.
  void zero_grad();

  /// The fp32 copies of parameters in half precision, beside each parameter; none without such.
  using MasterWeights = std::vector<std::pair<at::Tensor, at::Tensor>>;
  [[nodiscard]] virtual MasterWeights master_weights() const { return {}; }
  /// Makes `weight`, of the parameter's shape, its fp32 copy. Nothing where none is kept.
  virtual void set_master_weight(const at::Tensor& /*parameter*/, const at::Tensor& /*weight*/) {}

  /// The optimizer's class: "SGD", "Adam", ..., or the full name of a class that is not LibTorch's.
  [[nodiscard]] std::string_view kind() const noexcept { return kind_; }

  /// How it is stepped: "fused", "foreach", or "own" for the optimizer's own step.
  [[nodiscard]] virtual std::string_view method() const noexcept = 0;

 protected:
  explicit Stepper(torch::optim::Optimizer& optimizer);

  torch::optim::Optimizer& optimizer_;

 private:
  std::string kind_;
};

}  // namespace hasten::optim

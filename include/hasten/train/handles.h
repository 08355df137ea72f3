#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include <hasten/train/records.h>
#include <hasten/tree/tree.h>

/// What `Accelerator::prepare` returns: handles that read like the things they stand for. All can be made
/// empty and assigned later. They are used by the thread that runs the loop.
namespace hasten {

/// A model whose calls run in the run's precision and keep its processes in step. Shares the module.
template <class Module>
class PreparedModel {
 public:
  PreparedModel() = default;
  PreparedModel(std::shared_ptr<Module> module, std::shared_ptr<detail::ModelRecord> record)
      : module_(std::move(module)), record_(std::move(record)) {}

  /// The module's `forward`, with any arguments and its default ones. In mixed precision its outputs come
  /// back in fp32. Throws `kMismatch`, with the shapes and devices of the arguments, when LibTorch refuses
  /// them, and `kUnavailable`, with the operator, when it cannot compute in the run's precision.
  template <class... Arguments>
  auto operator()(Arguments&&... arguments) const {
    try {
      // Arguments are lent where forward takes them so: the first pass may have to be repeated.
      if constexpr (requires(Module& module) { module.forward(arguments...); }) {
        return run([&](Module& module) { return module.forward(arguments...); });
      } else {
        return run([&](Module& module) { return module.forward(std::forward<Arguments>(arguments)...); });
      }
    } catch (const std::exception& error) {
      std::vector<at::Tensor> inputs;
      (note_input(inputs, arguments), ...);
      detail::fail_forward(*record_, error, inputs);
    }
  }

  /// Like a call, for other entry points: `model.run([&](auto& m) { return m.encode(x); })`.
  template <class F>
  auto run(F&& f) const {
    if (!detail::layout_is_on_trial(*record_)) return run_once(f);
    try {
      const detail::LayoutTrial trial(*record_);
      return run_once(f);
    } catch (const std::exception& error) {
      if (!detail::give_up_layout(*record_, error)) throw;
    }
    return run_once(f);
  }

  /// The module itself: what is called this way runs as it would without this library.
  [[nodiscard]] Module* operator->() const noexcept { return module_.get(); }
  [[nodiscard]] Module& operator*() const noexcept { return *module_; }
  [[nodiscard]] const std::shared_ptr<Module>& module() const noexcept { return module_; }
  [[nodiscard]] const std::shared_ptr<detail::ModelRecord>& record() const noexcept { return record_; }

 private:
  template <class Argument>
  static void note_input(std::vector<at::Tensor>& inputs, const Argument& argument) {
    if constexpr (std::is_convertible_v<const Argument&, const at::Tensor&>) inputs.push_back(argument);
  }

  template <class F>
  auto run_once(F& f) const {
    using Output = std::invoke_result_t<F&, Module&>;
    if constexpr (std::is_void_v<Output>) {
      const detail::ForwardScope scope(*record_);
      f(*module_);
    } else {
      bool convert = false;
      Output output = [&] {
        const detail::ForwardScope scope(*record_);
        convert = scope.converts_outputs();
        return f(*module_);
      }();
      if (convert) tree::for_each(output, [](at::Tensor& tensor) { tensor = precision::to_fp32(tensor); });
      return output;
    }
  }

  std::shared_ptr<Module> module_;
  std::shared_ptr<detail::ModelRecord> record_;
};

/// An optimizer that updates when a window of micro-batches is complete, by fused kernels where there are
/// some. Borrows the optimizer.
template <class Optimizer>
class PreparedOptimizer {
 public:
  PreparedOptimizer() = default;
  PreparedOptimizer(Optimizer& optimizer, std::shared_ptr<detail::OptimizerRecord> record)
      : optimizer_(&optimizer), record_(std::move(record)) {}

  /// Updates the parameters; within a window that is not complete it does nothing. In fp16 an update whose
  /// gradients hold an infinity or NaN is left out. Every rank must call it.
  void step() const { detail::step(*record_, nullptr, nullptr); }

  /// The same with a closure that computes the loss, as LBFGS needs; returns the loss. The closure is to call
  /// `Accelerator::backward`.
  at::Tensor step(const std::function<at::Tensor()>& closure) const {
    at::Tensor loss;
    detail::step(*record_, &closure, &loss);
    return loss;
  }

  /// Drops the gradients; within a window that is not complete it keeps them. To be used instead of the
  /// optimizer's own `zero_grad`, which cannot handle gradients that are views of reduction buffers.
  void zero_grad() const { detail::zero_grad(*record_); }

  /// Whether the last `step` was left out because a gradient was not finite.
  [[nodiscard]] bool step_was_skipped() const { return detail::step_was_skipped(*record_); }

  [[nodiscard]] Optimizer* operator->() const noexcept { return optimizer_; }
  [[nodiscard]] Optimizer& operator*() const noexcept { return *optimizer_; }

 private:
  Optimizer* optimizer_ = nullptr;
  std::shared_ptr<detail::OptimizerRecord> record_;
};

/// A scheduler that counts optimizer updates, or what `AcceleratorOptions::schedule_unit` says. Borrows the
/// scheduler.
template <class Scheduler>
class PreparedScheduler {
 public:
  PreparedScheduler() = default;
  PreparedScheduler(Scheduler& scheduler, std::shared_ptr<detail::SchedulerRecord> record)
      : scheduler_(&scheduler), record_(std::move(record)) {}

  /// Moves the learning rate if the window is complete and the update was not left out; always where
  /// `step_scheduler_with_optimizer` is off.
  void step() const { detail::step(*record_); }

  [[nodiscard]] Scheduler* operator->() const noexcept { return scheduler_; }
  [[nodiscard]] Scheduler& operator*() const noexcept { return *scheduler_; }

 private:
  Scheduler* scheduler_ = nullptr;
  std::shared_ptr<detail::SchedulerRecord> record_;
};

/// A schedule that follows a metric. Borrows the schedule.
class PreparedPlateau {
 public:
  PreparedPlateau() = default;
  PreparedPlateau(optim::ReduceOnPlateau& plateau, std::shared_ptr<detail::PlateauRecord> record)
      : plateau_(&plateau), record_(std::move(record)) {}

  /// Takes in a metric, of which the mean over all ranks counts, so that rates stay alike; returns whether
  /// they were reduced. Counts in every call, whatever windows do. Every rank must call it.
  bool step(double metric) const { return detail::step(*record_, metric); }

  [[nodiscard]] optim::ReduceOnPlateau* operator->() const noexcept { return plateau_; }
  [[nodiscard]] optim::ReduceOnPlateau& operator*() const noexcept { return *plateau_; }

 private:
  optim::ReduceOnPlateau* plateau_ = nullptr;
  std::shared_ptr<detail::PlateauRecord> record_;
};

/// A loader that gives this process's part of every epoch, on its device. Borrows the loader.
template <class Loader>
class PreparedLoader {
 public:
  PreparedLoader() = default;
  PreparedLoader(Loader& loader, std::shared_ptr<detail::LoaderRecord> record)
      : loader_(&loader), record_(std::move(record)) {}

  [[nodiscard]] auto begin() const { return loader_->begin(); }
  [[nodiscard]] auto end() const { return loader_->end(); }
  /// Batches in an epoch of this process.
  [[nodiscard]] std::int64_t size() const { return loader_->size(); }
  void set_epoch(std::int64_t epoch) const { loader_->set_epoch(epoch); }

  [[nodiscard]] Loader* operator->() const noexcept { return loader_; }
  [[nodiscard]] Loader& operator*() const noexcept { return *loader_; }
  [[nodiscard]] const std::shared_ptr<detail::LoaderRecord>& record() const noexcept { return record_; }

 private:
  Loader* loader_ = nullptr;
  std::shared_ptr<detail::LoaderRecord> record_;
};

}  // namespace hasten

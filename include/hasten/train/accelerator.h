#pragma once

#include <concepts>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include <hasten/comm/collectives.h>
#include <hasten/comm/group.h>
#include <hasten/memory/batch_size.h>
#include <hasten/metrics/metrics.h>
#include <hasten/track/tracker.h>
#include <hasten/train/handles.h>
#include <hasten/train/local_sgd.h>
#include <hasten/train/options.h>
#include <hasten/train/profile.h>
#include <hasten/train/scopes.h>
#include <hasten/tree/split.h>

namespace hasten {

namespace detail {

/// `torch::nn::ModuleHolder` and what `TORCH_MODULE` makes, told by their shape: including them would cost
/// seconds.
template <class T>
concept ModuleHolder = requires(const std::remove_cvref_t<T>& holder) {
  typename std::remove_cvref_t<T>::ContainedType;
  { holder.ptr() } -> std::convertible_to<std::shared_ptr<torch::nn::Module>>;
};

template <class T>
concept ModulePointer = requires { typename std::remove_cvref_t<T>::element_type; } &&
                        std::convertible_to<std::remove_cvref_t<T>, std::shared_ptr<torch::nn::Module>>;

template <class T>
concept Optimizer = std::derived_from<std::remove_cvref_t<T>, torch::optim::Optimizer>;

template <class T>
concept Scheduler = std::derived_from<std::remove_cvref_t<T>, torch::optim::LRScheduler>;

template <class T>
concept Plateau = std::same_as<std::remove_cvref_t<T>, optim::ReduceOnPlateau>;

template <class T>
concept Loader = std::derived_from<std::remove_cvref_t<T>, data::LoaderBase>;

template <class T>
inline constexpr bool kUnknown = false;

}  // namespace detail

/// Seeds the default random generators of all devices.
void set_seed(std::uint64_t seed);

/// A value for `Accelerator::log`: a number, or a tensor of one element, which is read only when it is due.
using LogValue = std::variant<double, at::Tensor>;

/// Runs a training program on whatever the machine and its launcher offer: one process or many, CPU or GPU,
/// in the precision asked for.
///
/// Make one at the start of the program, give `prepare` what the loop uses, and use what it returns. An
/// Accelerator and its handles belong to the thread that runs the loop. Destroy handles before what they
/// borrow.
class Accelerator {
 public:
  /// Joins the other processes that the launcher started, if any; waits for them. Throws `kInvalidArgument`
  /// for options that cannot work, `kUnavailable` when the machine lacks what was asked for, `kTimeout` when
  /// a process does not come.
  explicit Accelerator(AcceleratorOptions options = {});
  ~Accelerator();
  Accelerator(const Accelerator&) = delete;
  Accelerator& operator=(const Accelerator&) = delete;

  /// Takes models (module holders or shared pointers), optimizers, loaders and schedulers, any number in any
  /// order, and returns a handle for each; several as a tuple.
  ///
  /// Models move to the run's device, in place, and are made equal on all ranks (rank 0's values). Loaders
  /// give each rank its part. Nothing is copied. Models are shared; optimizers, loaders and schedulers are
  /// borrowed and must outlive their handles. Giving a thing again returns a handle to the same. Every rank
  /// must prepare the same things in the same order. Throws `kInvalidArgument` for a thing that another
  /// Accelerator holds and for an optimizer whose parameters belong to no prepared model, `kMismatch` when
  /// the models of the ranks differ.
  template <class... Things>
  [[nodiscard]] auto prepare(Things&&... things) {
    static_assert(sizeof...(Things) > 0, "hasten: prepare needs at least one thing");
    std::tuple prepared{prepare_one(std::forward<Things>(things))...};
    detail::finish_attaching(*run_);
    if constexpr (sizeof...(Things) == 1) {
      return std::get<0>(std::move(prepared));
    } else {
      return prepared;
    }
  }

  /// Computes gradients of the loss (one element), averaged over the ranks and over the window's
  /// micro-batches, or over items: see `BackwardOptions`. May be called several times a step. Every rank must
  /// call it.
  void backward(const at::Tensor& loss, const BackwardOptions& options = {});

  /// Opens a micro-batch: keep the result until the end of the loop's body. All prepared models take part,
  /// whether named here or not.
  template <class... Models>
  [[nodiscard]] AccumulationScope accumulate(const Models&...) {
    return AccumulationScope(*run_);
  }

  /// Suspends the reduction of gradients while the result lives.
  template <class... Models>
  [[nodiscard]] NoSyncScope no_sync(const Models&...) {
    return NoSyncScope(*run_);
  }

  /// The next backward pass reduces gradients though a window is open or `no_sync` holds. Every rank must
  /// call it.
  void trigger_sync_in_backward();

  /// In fp16, brings the gradients of all optimizers to their true size, once a backward pass. Clipping and
  /// steps do so by themselves.
  void unscale_gradients();

  /// Lets ranks have different numbers of batches while the result lives; see `JoinScope`. For loops that
  /// train: nothing else that all ranks must call may be called within. All prepared models take part,
  /// whether named here or not. Every rank must call it.
  template <class... Models>
  [[nodiscard]] JoinScope join_uneven_inputs(const PreparedModel<Models>&...) {
    return {*run_, JoinOptions()};
  }
  [[nodiscard]] JoinScope join_uneven_inputs(const JoinOptions& options) { return {*run_, options}; }

  /// Whether this micro-batch completes its window, so that optimizers step; true outside of `accumulate`.
  [[nodiscard]] bool sync_gradients() const;

  /// The run's precision for code outside of a model's call, while the result lives.
  [[nodiscard]] precision::Autocast autocast() const;

  /// Scales the gradients of a model so that their norm is at most `max_norm`; returns the norm they had, a
  /// 0-d tensor on their device, without waiting for it. In fp16 the gradients are brought to their true size
  /// first. Within a window that is not complete nothing is changed. `norm_type` infinity takes the largest
  /// absolute value. Gradients may be of several types and devices, sparse, or missing. With
  /// `error_if_nonfinite` a norm that is not finite throws `kFailedPrecondition`, naming the parameters, and
  /// no gradient is changed; that waits for the device.
  template <class Module>
  at::Tensor clip_grad_norm_(const PreparedModel<Module>& model, double max_norm, double norm_type = 2.0,
                             bool error_if_nonfinite = false) {
    return clip_grad_norm_(detail::parameters_of(*model.record()), max_norm, norm_type, error_if_nonfinite);
  }
  at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                             double norm_type = 2.0, bool error_if_nonfinite = false);

  /// Limits each element of the gradients to [-limit, limit], under the same conditions.
  template <class Module>
  void clip_grad_value_(const PreparedModel<Module>& model, double limit) {
    clip_grad_value_(detail::parameters_of(*model.record()), limit);
  }
  void clip_grad_value_(const std::vector<at::Tensor>& parameters, double limit);

  /// Whether the last step of any optimizer was left out because a gradient was not finite.
  [[nodiscard]] bool optimizer_step_was_skipped() const;

  /// The tensors of all ranks, joined along their first dimension in order of rank, on every rank. Shapes
  /// must agree.
  template <class Batch>
  [[nodiscard]] Batch gather(const Batch& batch) const {
    return comm::gather(group(), batch);
  }

  /// Like `gather`, for results of an evaluation: rows that stand for samples which were repeated to fill the
  /// last batch are left out, so that each sample counts once. To be called in the loop over a prepared
  /// loader.
  template <class Batch>
  [[nodiscard]] Batch gather_for_metrics(const Batch& batch) const {
    return tree::map(batch, [this](const at::Tensor& tensor) { return gather_rows(tensor); });
  }

  /// Like `gather_for_metrics`, for results that are no tensors, one a sample: all that `tree::to_bytes`
  /// takes.
  template <class T>
  [[nodiscard]] std::vector<T> gather_object_for_metrics(const std::vector<T>& results) const {
    const auto rows = rows_that_count(static_cast<std::int64_t>(results.size()));
    std::vector<T> all;
    for (auto& of_rank :
         comm::gather_object(group(), std::vector<T>(results.begin(), results.begin() + rows)))
      all.insert(all.end(), std::make_move_iterator(of_rank.begin()), std::make_move_iterator(of_rank.end()));
    return all;
  }

  /// All ranks' values, in the order of ranks: numbers, strings, tensors, containers and structs of them.
  template <class T>
  [[nodiscard]] std::vector<T> gather_object(const T& value) const {
    return comm::gather_object(group(), value);
  }

  /// The tensors of a rank, on every rank. Shapes must agree.
  template <class Batch>
  [[nodiscard]] Batch broadcast(const Batch& batch, int from_process = 0) const {
    return comm::broadcast(group(), batch, from_process);
  }

  /// Replaces the elements by those of a rank, which may be more or fewer. As `gather_object`.
  template <class T>
  void broadcast_object_list(std::vector<T>& values, int from_process = 0) const {
    comm::broadcast_object_list(group(), values, from_process);
  }

  /// This process's share of inputs that every process has: tensors along their first dimension, vectors,
  /// and maps and structs of such. The first processes get one more where it does not divide. With
  /// `apply_padding` all get as many, the last input again where there are too few.
  template <class Batch>
  [[nodiscard]] Batch split_between_processes(const Batch& inputs, bool apply_padding = false) const {
    return tree::split(inputs, process_index(), num_processes(), apply_padding);
  }

  /// sum(weight * value) / sum(weight) over the ranks, in float64, in the value's type. Ranks without weight
  /// count nothing, whatever their value; NaN when no rank has any. For means over different numbers of
  /// samples. Throws `kInvalidArgument` for a negative weight, integers and complex numbers.
  [[nodiscard]] at::Tensor weighted_mean(const at::Tensor& value, double weight) const;

  /// Counts a batch into a metric, without the rows that stand for repeated samples: `metric.update(...)`
  /// with the tensors cut to the rest. To be called in the loop over a prepared loader.
  template <class Metric, class... Tensors>
  void update(Metric& metric, const Tensors&... tensors) const {
    metric.update(only_rows_that_count(tensors)...);
  }

  /// The metric over all ranks, by one reduction and one read. Every rank must call it.
  [[nodiscard]] double compute(const metrics::Metric& metric) const;

  /// The tensors of all ranks combined element by element, on every rank. Integers average to float.
  template <class Batch>
  [[nodiscard]] Batch reduce(const Batch& batch, comm::ReduceOp op = comm::ReduceOp::kSum) const {
    return comm::reduce(group(), batch, op);
  }

  /// Pads the tensors so that all ranks' have the same size along `dim`, at the end or at the beginning.
  template <class Batch>
  [[nodiscard]] Batch pad_across_processes(const Batch& batch, std::int64_t dim = 0, double pad_index = 0,
                                           bool pad_first = false) const {
    return comm::pad_across(group(), batch, dim, pad_index, pad_first);
  }

  /// Seeds the random generators of all devices; with `device_specific` each rank's by its own number, the
  /// seed plus its rank.
  void set_seed(std::uint64_t seed, bool device_specific = false) const;

  /// Raises a flag that `check_trigger` shows to all ranks.
  void set_trigger();
  /// Whether any rank raised its flag since the last time this was true; lowers them then. Every rank must
  /// call it.
  [[nodiscard]] bool check_trigger();

  /// The loader, whose next loop leaves out its first batches; later ones do not.
  template <class Loader>
  [[nodiscard]] PreparedLoader<Loader> skip_first_batches(const PreparedLoader<Loader>& loader,
                                                          std::int64_t count) const {
    skip_first_batches(*loader.record(), count);
    return loader;
  }

  /// Empties the handles given, and gives the memory that is kept for later back.
  template <class... Handles>
  void free_memory(Handles&... handles) const {
    ((handles = Handles()), ...);
    release_memory();
  }

  /// `memory::find_executable_batch_size` for all ranks together.
  template <class F>
  auto find_executable_batch_size(std::int64_t starting_batch_size, F&& f, bool halve = false) const {
    return memory::find_executable_batch_size(
        {.starting_batch_size = starting_batch_size, .halve = halve, .group = &group()}, std::forward<F>(f));
  }

  /// Records what LibTorch does while the result lives; see `Profile`.
  [[nodiscard]] Profile profile(const ProfileOptions& options = {}) const { return {*run_, options}; }

  void wait_for_everyone() const;
  [[nodiscard]] bool is_main_process() const;        ///< rank 0 of all
  [[nodiscard]] bool is_local_main_process() const;  ///< the first rank of this host
  [[nodiscard]] bool is_last_process() const;        ///< the last rank of all
  [[nodiscard]] std::int64_t process_index() const;
  [[nodiscard]] std::int64_t local_process_index() const;  ///< among those of this host
  [[nodiscard]] std::int64_t num_processes() const;
  [[nodiscard]] at::Device device() const;
  [[nodiscard]] Precision mixed_precision() const;

  /// Writes the parts after one another and a line end to standard output, on the main process only.
  template <class... Parts>
  void print(const Parts&... parts) const {
    if (is_main_process()) print_line(concat(parts...));
  }

  /// A block that the main process runs first: `auto first = accelerator.main_process_first();`. Every rank
  /// must enter it.
  [[nodiscard]] MainProcessFirstScope main_process_first() { return MainProcessFirstScope(*run_); }

  /// The same for each host and the first of its processes.
  [[nodiscard]] MainProcessFirstScope local_main_process_first() {
    return MainProcessFirstScope(*run_, is_local_main_process());
  }

  /// Calls `f` on the main process only.
  template <class F>
  void on_main_process(F&& f) const {
    if (is_main_process()) std::forward<F>(f)();
  }
  /// Calls `f` on the first process of each host.
  template <class F>
  void on_local_main_process(F&& f) const {
    if (is_local_main_process()) std::forward<F>(f)();
  }
  /// Calls `f` on the last process only.
  template <class F>
  void on_last_process(F&& f) const {
    if (is_last_process()) std::forward<F>(f)();
  }
  /// Calls `f` on one process only, by its rank.
  template <class F>
  void on_process(F&& f, std::int64_t index) const {
    if (process_index() == index) std::forward<F>(f)();
  }
  /// Calls `f` on one process of each host.
  template <class F>
  void on_local_process(F&& f, std::int64_t local_index) const {
    if (local_process_index() == local_index) std::forward<F>(f)();
  }

  /// The module behind a handle.
  template <class Module>
  [[nodiscard]] std::shared_ptr<Module> unwrap_model(const PreparedModel<Module>& model) const {
    return model.module();
  }

  /// Writes `folder`/model.safetensors under Python's names, from the main process. Every rank must call it.
  template <class Module>
  void save_model(const PreparedModel<Module>& model, const std::filesystem::path& folder) const {
    save_model(*model.record(), folder);
  }

  /// Saves the whole state: models, optimizers, schedulers, scaler, loaders, counters, and each rank's random
  /// state. Without a folder it is the next `checkpoint_N` of the project, and `total_limit` is kept. Returns
  /// the folder. It is complete or absent. To be called between windows, by every rank. Throws `kSystem` when
  /// it cannot be written, `kFailedPrecondition` within a window or without a place to save to.
  std::filesystem::path save_state(const std::filesystem::path& folder = {});

  /// Restores what `save_state` saved; without a folder from the newest good checkpoint of the project. Every
  /// rank must call it, after `prepare` of the same things. Throws `kNotFound`, `kCorruptData` or
  /// `kMismatch`; models and optimizers are unchanged when they do not fit.
  void load_state(const std::filesystem::path& folder = {});

  /// Makes an object part of checkpoints: a struct of numbers, strings, tensors and containers, anything that
  /// `tree::to_bytes` takes. It is borrowed; the main process's is saved, and every rank loads it. A run that
  /// loads must have registered as many, in the same order.
  template <class T>
  void register_for_checkpointing(T& object) {
    register_state([&object] { return tree::to_bytes(object); },
                   [&object](std::string_view bytes) { object = tree::from_bytes<T>(bytes); });
  }

  /// Called on every rank with the folder before `save_state` writes, or before `load_state` reads.
  void register_save_state_pre_hook(std::function<void(const std::filesystem::path&)> hook);
  void register_load_state_pre_hook(std::function<void(const std::filesystem::path&)> hook);

  /// Restores the newest checkpoint of a run in this project that did not finish. Returns whether there was
  /// one.
  bool load_state_if_any();

  /// Starts the trackers with the run's settings; called by the first `log` if not before. Main process only
  /// writes.
  void init_trackers(const std::string& name = "", const track::Config& config = {});

  /// Notes values of the present step. They are shown in the progress bar, and given to the trackers at every
  /// `log_every` updates; only then is a tensor read. Any rank may call it; the main process's values count.
  void log(std::initializer_list<std::pair<const char*, LogValue>> values);
  /// Gives values to the trackers at once, under a step of your own.
  void log(std::initializer_list<std::pair<const char*, LogValue>> values, std::int64_t step);

  /// Epochs that are left: begins where a resumed run stopped, and ends early when the run is told to stop.
  [[nodiscard]] Epochs epochs(std::int64_t count) { return Epochs(*run_, count); }

  /// Optimizer updates done so far, over resumes.
  [[nodiscard]] std::int64_t updates() const;

  /// Whether SIGINT or SIGTERM ended the epochs early; the same on all ranks.
  [[nodiscard]] bool interrupted() const;

  /// Saves what is unsaved, closes the trackers, and prints the closing report. Every rank must call it. In a
  /// run that was interrupted it does not return: the signal is raised again with its default effect, so that
  /// the shell sees the status it expects (130 for SIGINT, 143 for SIGTERM).
  void end_training();

  [[nodiscard]] comm::Group& group() const;

 private:
  friend class LocalSgd;
  friend class Logger;

  template <class Thing>
  auto prepare_one(Thing&& thing) {
    using T = std::remove_cvref_t<Thing>;
    constexpr bool kIsLvalue = std::is_lvalue_reference_v<Thing>;
    if constexpr (detail::ModuleHolder<Thing>) {
      return PreparedModel<typename T::ContainedType>(thing.ptr(), detail::attach(*run_, thing.ptr()));
    } else if constexpr (detail::ModulePointer<Thing>) {
      return PreparedModel<typename T::element_type>(thing, detail::attach(*run_, thing));
    } else if constexpr (detail::Optimizer<Thing>) {
      static_assert(kIsLvalue,
                    "hasten: an optimizer is borrowed; give prepare a named one that outlives its handle");
      return PreparedOptimizer<T>(thing, detail::attach(*run_, thing));
    } else if constexpr (detail::Scheduler<Thing>) {
      static_assert(kIsLvalue,
                    "hasten: a scheduler is borrowed; give prepare a named one that outlives its handle");
      return PreparedScheduler<T>(thing,
                                  detail::attach(*run_, static_cast<torch::optim::LRScheduler&>(thing)));
    } else if constexpr (detail::Plateau<Thing>) {
      static_assert(kIsLvalue,
                    "hasten: a schedule is borrowed; give prepare a named one that outlives its handle");
      return PreparedPlateau(thing, detail::attach(*run_, thing));
    } else if constexpr (detail::Loader<Thing>) {
      static_assert(kIsLvalue,
                    "hasten: a loader is borrowed; give prepare a named one that outlives its handle");
      return PreparedLoader<T>(thing, detail::attach(*run_, static_cast<data::LoaderBase&>(thing)));
    } else {
      static_assert(
          detail::kUnknown<T>,
          "hasten: prepare takes module holders, shared pointers to modules, optimizers, LR schedulers, "
          "hasten::optim::ReduceOnPlateau and hasten::data::Loader; include the headers that define them");
    }
  }

  /// How many of this rank's rows of the present batch are no copies that filled it.
  [[nodiscard]] std::int64_t rows_that_count(std::int64_t rows) const;
  template <class Batch>
  [[nodiscard]] Batch only_rows_that_count(const Batch& batch) const {
    return tree::map(batch, [this](const at::Tensor& tensor) {
      return tensor.defined() && tensor.dim() > 0 ? tensor.narrow(0, 0, rows_that_count(tensor.size(0)))
                                                  : tensor;
    });
  }
  void register_state(std::function<std::string()> save, std::function<void(std::string_view)> load);
  void release_memory() const;
  void skip_first_batches(detail::LoaderRecord& record, std::int64_t count) const;
  [[nodiscard]] at::Tensor gather_rows(const at::Tensor& tensor) const;
  void print_line(const std::string& line) const;
  void save_model(const detail::ModelRecord& record, const std::filesystem::path& folder) const;

  std::shared_ptr<detail::Run> run_;
};

}  // namespace hasten

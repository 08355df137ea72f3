#include "parallel/ddp/bucketed_reducer.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <hasten/base/error.h>

#include "parallel/ddp/compression.h"

namespace hasten::parallel {
namespace {

constexpr std::size_t kMebibyte = 1024 * 1024;

/// Lets out whether a reduction is unfinished, which the Reducer keeps for its subclasses.
class ObservableReducer final : public c10d::Reducer {
 public:
  using c10d::Reducer::Reducer;
  [[nodiscard]] bool unfinished() const { return require_finalize_; }
  /// Whether no gradient has come at all since it was armed: the loss does not reach this model.
  [[nodiscard]] bool untouched() const {
    return std::ranges::all_of(
        buckets_, [](const Bucket& bucket) { return bucket.pending == bucket.variables.size(); });
  }
};

}  // namespace

class BucketedReducer::Implementation {
 public:
  Implementation(std::shared_ptr<comm::Group> group, const std::vector<const params::Parameter*>& parameters,
                 const DataParallelOptions& options)
      : group_(std::move(group)) {
    std::unordered_map<std::size_t, std::string> names;
    for (const params::Parameter* parameter : parameters) {
      names.emplace(tensors_.size(), parameter->name);
      names_.push_back(parameter->name);
      tensors_.push_back(parameter->tensor);
    }
    std::vector<bool> sparse;
    for (const params::Parameter* parameter : parameters) sparse.push_back(parameter->sparse_gradient);
    // The first bucket is small, so that the first reduction starts early in the backward pass.
    const auto cap = static_cast<std::size_t>(options.bucket_cap_mb * static_cast<double>(kMebibyte));
    const std::vector<std::size_t> limits{std::min(kMebibyte, cap), cap};
    auto [buckets, used_limits] = c10d::compute_bucket_assignment_by_size(tensors_, limits, sparse);
    // Gradients come in about the reverse of the order in which parameters were registered.
    std::ranges::reverse(buckets);
    reducer_ = std::make_shared<ObservableReducer>(
        tensors_, std::move(buckets), group_->process_group(), sparse, static_cast<int64_t>(cap),
        options.find_unused_parameters, options.gradient_as_bucket_view, std::move(names),
        static_cast<int64_t>(limits[0]), /*skip_all_reduce_unused_params=*/false,
        /*use_python_reducer=*/false, std::vector<int64_t>{});
    // Without a logger the search for unused parameters crashes when the set of them changes.
    logger_ = std::make_shared<c10d::Logger>(reducer_);
    reducer_->set_logger(logger_);
    if (options.static_graph) reducer_->set_static_graph();
    learns_graph_ = options.static_graph;
    ParameterNames parameter_names;
    for (std::size_t i = 0; i < tensors_.size(); ++i)
      parameter_names.emplace(tensors_[i].unsafeGetTensorImpl(), names_[i]);
    if (auto compression = make_compression(group_, options, std::move(parameter_names))) {
      compression_ = compression.get();
      reducer_->register_comm_hook(std::move(compression));
    }
    searches_ = options.find_unused_parameters || options.static_graph;
  }

  [[nodiscard]] Compression* compression() const { return compression_; }

  ~Implementation() { reducer_->remove_autograd_hooks(); }

  void arm(const at::Tensor& loss) {
    reducer_->rebuild_buckets();
    reducer_->prepare_for_forward();
    reducer_->prepare_for_backward(searches_ ? std::vector<at::Tensor>{loss} : std::vector<at::Tensor>{});
    if (!learns_graph_) return;
    // In the first pass of a static graph the reducer only counts how often each parameter is used, and has
    // to be told when the pass is over. That must happen within the pass, at its end.
    learns_graph_ = false;
    loss.register_hook([reducer = reducer_, told = std::make_shared<bool>(false)](const at::Tensor&) {
      if (!std::exchange(*told, true))
        torch::autograd::Engine::get_default_engine().queue_callback(
            [reducer] { reducer->delay_all_reduce(); });
    });
  }

  void finish() {
    if (!reducer_->unfinished()) return;
    if (reducer_->untouched()) return reducer_->reset_state();
    std::string unused;
    for (std::size_t i = 0; i < tensors_.size(); ++i)
      if (!tensors_[i].grad().defined()) unused += (unused.empty() ? "'" : ", '") + names_[i] + "'";
    reducer_->reset_state();
    fail(ErrorCode::kMismatch, "backward", "on rank ", group_->rank(),
         " the loss does not depend on parameter ",
         unused.empty() ? "(one whose gradient was kept from an earlier step)" : unused,
         ". All ranks must reduce the same gradients: set data_parallel.find_unused_parameters, or freeze "
         "what is not "
         "trained with set_requires_grad(false) before prepare.");
  }

 private:
  std::shared_ptr<comm::Group> group_;
  std::vector<at::Tensor> tensors_;
  std::vector<std::string> names_;
  std::shared_ptr<ObservableReducer> reducer_;
  std::shared_ptr<c10d::Logger> logger_;
  Compression* compression_ = nullptr;  // the reducer's
  bool searches_ = false;
  bool learns_graph_ = false;
};

BucketedReducer::BucketedReducer(std::shared_ptr<comm::Group> group,
                                 const std::vector<const params::Parameter*>& parameters,
                                 const DataParallelOptions& options)
    : implementation_(std::make_unique<Implementation>(std::move(group), parameters, options)) {}
BucketedReducer::~BucketedReducer() = default;
void BucketedReducer::arm(const at::Tensor& loss) {
  implementation_->arm(loss);
}
void BucketedReducer::finish() {
  implementation_->finish();
}
params::NamedTensors BucketedReducer::compression_state() const {
  const Compression* compression = implementation_->compression();
  return compression == nullptr ? params::NamedTensors() : compression->state();
}
void BucketedReducer::load_compression_state(const params::NamedTensors& state) {
  if (Compression* compression = implementation_->compression()) compression->load_state(state);
}

}  // namespace hasten::parallel

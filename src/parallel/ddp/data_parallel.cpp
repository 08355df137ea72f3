#include <algorithm>
#include <sstream>
#include <unordered_map>
#include <unordered_set>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include <hasten/base/error.h>
#include <hasten/comm/group.h>

#include "parallel/ddp/bucketed_reducer.h"
#include "parallel/strategies.h"

namespace hasten::parallel {
namespace {

using torch::autograd::Node;

/// Bytes that are put together into one broadcast.
constexpr std::size_t kBroadcastBytes = 64U << 20U;

/// "name [2, 3] Float" of each tensor, a line each: equal on all ranks or their models differ.
std::string describe(const params::ParameterSet& parameters) {
  std::ostringstream text;
  for (const auto& parameter : parameters.parameters())
    text << parameter.name << ' ' << parameter.tensor.sizes() << ' ' << parameter.tensor.scalar_type()
         << (parameter.tensor.requires_grad() ? "\n" : " frozen\n");
  for (const auto& [name, buffer] : parameters.buffers())
    if (buffer.defined()) text << name << ' ' << buffer.sizes() << ' ' << buffer.scalar_type() << '\n';
  return text.str();
}

/// The first line in which two texts differ, from each.
std::pair<std::string, std::string> first_difference(const std::string& a, const std::string& b) {
  std::istringstream left(a), right(b);
  for (;;) {
    std::string l, r;
    const bool more = !!std::getline(left, l) | !!std::getline(right, r);
    if (l != r || !more) return {l.empty() ? "nothing" : l, r.empty() ? "nothing" : r};
  }
}

void require_same_model(comm::Group& group, const params::ParameterSet& parameters) {
  const std::vector<std::string> all = group.all_gather_bytes(describe(parameters));
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    const auto [here, there] = first_difference(all[0], all[rank]);
    fail(ErrorCode::kMismatch, "prepare", "the model differs between ranks: rank 0 has ", here,
         " where rank ", rank, " has ", there, ". Build the same model on every rank.");
  }
}

class DataParallel;

class DataParallelReplica final : public Replica {
 public:
  DataParallelReplica(DataParallel& owner, std::shared_ptr<comm::Group> group,
                      const params::ParameterSet& parameters, const DataParallelOptions& options);
  ~DataParallelReplica() override;

  void before_forward() override { buffers_changed_ = buffers_changed_ || at::GradMode::is_enabled(); }

  void before_backward(const at::Tensor& loss) {
    if (reducer_) reducer_->arm(loss);
  }

  void after_backward() {
    if (reducer_) reducer_->finish();
    synchronize_buffers();
  }

  [[nodiscard]] bool owns(const Node* accumulator) const { return accumulators_.contains(accumulator); }

 private:
  // Buffers change in forward passes that train. They are brought in step once a reduced backward pass, not
  // before each forward pass: so an evaluation on some ranks only cannot hang, and every rank may save or
  // evaluate with the same statistics.
  void synchronize_buffers() {
    if (buffers_.empty() || !buffers_changed_) return;
    broadcast(buffers_);
    buffers_changed_ = false;
  }

  void broadcast(const std::vector<at::Tensor>& tensors) const {
    const at::NoGradGuard no_grad;
    c10d::broadcast_coalesced(group_->process_group(), tensors, kBroadcastBytes, /*rank=*/0);
  }

  DataParallel& owner_;
  std::shared_ptr<comm::Group> group_;
  std::unique_ptr<BucketedReducer> reducer_;
  std::vector<at::Tensor> buffers_;
  bool buffers_changed_ = false;
  std::vector<c10::intrusive_ptr<Node>> held_accumulators_;
  std::unordered_set<const Node*> accumulators_;
};

/// Every rank holds the whole model and trains it on its own part of each batch; gradients are averaged.
class DataParallel final : public Strategy {
 public:
  DataParallel(std::shared_ptr<comm::Group> group, const DataParallelOptions& options)
      : group_(std::move(group)), options_(options) {}

  std::string_view name() const override { return "data parallel"; }

  std::unique_ptr<Replica> attach(const params::ParameterSet& parameters) override {
    return std::make_unique<DataParallelReplica>(*this, group_, parameters, options_);
  }

  void attach(torch::optim::Optimizer&) override {}

  void backward(const at::Tensor& loss, const at::Tensor& weight, bool synchronize,
                const BackwardOptions& options) override {
    if (!synchronize) return loss.backward(weight, options.retain_graph, options.create_graph);
    const std::vector<DataParallelReplica*> reached = reached_by(loss);
    for (DataParallelReplica* replica : reached) replica->before_backward(loss);
    loss.backward(weight, options.retain_graph, options.create_graph);
    for (DataParallelReplica* replica : reached) replica->after_backward();
  }

  void add(DataParallelReplica* replica) { replicas_.push_back(replica); }
  void remove(DataParallelReplica* replica) { std::erase(replicas_, replica); }

 private:
  /// The models whose parameters a loss depends on. One model is taken as reached without a look; the reducer
  /// notices when it was not.
  std::vector<DataParallelReplica*> reached_by(const at::Tensor& loss) const {
    if (replicas_.size() <= 1) return replicas_;
    std::vector<DataParallelReplica*> missing = replicas_;
    std::vector<DataParallelReplica*> reached;
    std::unordered_set<const Node*> seen;
    std::vector<const Node*> open{loss.grad_fn().get()};
    while (!open.empty() && !missing.empty()) {
      const Node* node = open.back();
      open.pop_back();
      if (node == nullptr || !seen.insert(node).second) continue;
      std::erase_if(missing, [&](DataParallelReplica* replica) { return replica->owns(node); });
      for (const auto& edge : node->next_edges()) open.push_back(edge.function.get());
    }
    // In the order of attaching, which is the same on all ranks.
    std::ranges::copy_if(replicas_, std::back_inserter(reached), [&](DataParallelReplica* replica) {
      return std::ranges::find(missing, replica) == missing.end();
    });
    return reached;
  }

  std::shared_ptr<comm::Group> group_;
  DataParallelOptions options_;
  std::vector<DataParallelReplica*> replicas_;
};

DataParallelReplica::DataParallelReplica(DataParallel& owner, std::shared_ptr<comm::Group> group,
                                         const params::ParameterSet& parameters,
                                         const DataParallelOptions& options)
    : owner_(owner), group_(std::move(group)) {
  require_same_model(*group_, parameters);
  std::vector<at::Tensor> all;
  std::vector<const params::Parameter*> trained;
  for (const auto& parameter : parameters.parameters()) {
    all.push_back(parameter.tensor.variable_data());
    if (parameter.tensor.requires_grad()) trained.push_back(&parameter);
  }
  // variable_data() has a version counter of its own: a broadcast between two backward passes over one graph
  // must not look like a change of what the graph saved.
  for (const auto& [name, buffer] : parameters.buffers())
    if (buffer.defined()) all.push_back(buffer.variable_data());
  if (!all.empty()) broadcast(all);
  if (options.broadcast_buffers)
    for (std::size_t i = parameters.parameters().size(); i < all.size(); ++i) buffers_.push_back(all[i]);
  for (const params::Parameter* parameter : trained) {
    held_accumulators_.push_back(torch::autograd::impl::grad_accumulator(parameter->tensor));
    accumulators_.insert(held_accumulators_.back().get());
  }
  if (!trained.empty()) reducer_ = std::make_unique<BucketedReducer>(group_, trained, options);
  owner_.add(this);
}

DataParallelReplica::~DataParallelReplica() {
  owner_.remove(this);
}

}  // namespace

std::unique_ptr<Strategy> make_data_parallel(std::shared_ptr<comm::Group> group,
                                             const DataParallelOptions& options) {
  require(options.bucket_cap_mb > 0, ErrorCode::kInvalidArgument, "data_parallel", "bucket_cap_mb is ",
          options.bucket_cap_mb, ", but must be positive.");
  return std::make_unique<DataParallel>(std::move(group), options);
}

}  // namespace hasten::parallel

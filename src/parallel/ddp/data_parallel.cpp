#include <algorithm>
#include <map>
#include <sstream>
#include <unordered_map>
#include <unordered_set>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include <hasten/base/error.h>
#include <hasten/comm/group.h>

#include "parallel/ddp/bucketed_reducer.h"
#include "parallel/ddp/sync_batch_norm.h"
#include "parallel/strategies.h"

namespace hasten::parallel {
namespace {

using torch::autograd::Node;

/// Bytes that are put together into one broadcast.
constexpr std::size_t kBroadcastBytes = 64U << 20U;
/// Bytes of gradients that are put together into one reduction where they are not reduced in buckets.
constexpr std::size_t kReduceBytes = 25U << 20U;

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
  device::OperatorHook* operator_hook() override { return sync_batch_norm_.get(); }
  void copy_from(int rank) override {
    if (!tensors_.empty()) broadcast(tensors_, rank);
  }
  void average() override {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& tensor : tensors_)
      if (tensor.is_floating_point()) group_->all_reduce_(tensor, comm::ReduceOp::kMean);
  }

  void before_backward(const at::Tensor& loss) {
    if (reducer_) reducer_->arm(loss);
  }

  /// Buffers change in forward passes that train. They are brought in step once a reduced backward pass, not
  /// before each forward pass: so an evaluation on some ranks only cannot hang, and every rank may save or
  /// evaluate with the same statistics.
  void after_backward() {
    if (reducer_) reducer_->finish();
    synchronize_buffers(0);
  }

  void synchronize_buffers(int from) {
    if (!buffers_are_due()) return;
    broadcast(buffers_, from);
    buffers_changed_ = false;
  }

  /// Sums the gradients that the ranks hold, in the order of parameters, and divides them: what does not
  /// depend on the order in which each rank's backward pass came to them. A rank without one of them counts
  /// zero; what no rank has stays undefined.
  void reduce(int divisor) {
    const at::NoGradGuard no_grad;
    at::Tensor present = at::zeros({static_cast<std::int64_t>(trained_.size())}, at::kLong);
    for (std::size_t i = 0; i < trained_.size(); ++i)
      if (trained_[i].grad().defined()) present[static_cast<std::int64_t>(i)].fill_(1);
    group_->all_reduce_(present, comm::ReduceOp::kMax);
    std::vector<at::Tensor> bucket;
    std::size_t bytes = 0;
    const auto flush = [&] {
      if (!bucket.empty()) sum_together(bucket, divisor);
      bucket.clear();
      bytes = 0;
    };
    for (std::size_t i = 0; i < trained_.size(); ++i) {
      if (present[static_cast<std::int64_t>(i)].item<std::int64_t>() == 0) continue;
      at::Tensor& gradient = trained_[i].mutable_grad();
      if (sparse_[i]) {
        sum_sparse(gradient, trained_[i], divisor);
        continue;
      }
      if (!gradient.defined()) gradient = at::zeros_like(trained_[i]);
      if (bytes >= kReduceBytes || (!bucket.empty() && bucket[0].scalar_type() != gradient.scalar_type()))
        flush();
      bucket.push_back(gradient);
      bytes += gradient.nbytes();
    }
    flush();
  }

  [[nodiscard]] bool buffers_are_due() const { return !buffers_.empty() && buffers_changed_; }
  void make_buffers_due(bool due) { buffers_changed_ = due; }
  [[nodiscard]] bool owns(const Node* accumulator) const { return accumulators_.contains(accumulator); }
  /// What is trained.
  [[nodiscard]] const std::vector<at::Tensor>& trained() const { return trained_; }
  [[nodiscard]] BucketedReducer* reducer() const { return reducer_.get(); }

 private:
  void sum_together(const std::vector<at::Tensor>& gradients, int divisor) const {
    std::vector<at::Tensor> flat;
    for (const at::Tensor& gradient : gradients) flat.push_back(gradient.reshape(-1));
    const at::Tensor sum = at::cat(flat);
    group_->all_reduce_(sum, comm::ReduceOp::kSum);
    sum.div_(divisor);
    std::int64_t begin = 0;
    for (const at::Tensor& gradient : gradients) {
      gradient.copy_(sum.narrow(0, begin, gradient.numel()).view(gradient.sizes()));
      begin += gradient.numel();
    }
  }

  void sum_sparse(at::Tensor& gradient, const at::Tensor& parameter, int divisor) const {
    if (!gradient.defined()) gradient = at::zeros(parameter.sizes(), parameter.options().layout(at::kSparse));
    std::vector<at::Tensor> tensors{gradient.coalesce()};
    group_->process_group()->allreduce(tensors)->wait();
    gradient = tensors[0].coalesce() / divisor;
  }

  void broadcast(const std::vector<at::Tensor>& tensors, int root) const {
    const at::NoGradGuard no_grad;
    c10d::broadcast_coalesced(group_->process_group(), tensors, kBroadcastBytes, root);
  }

  DataParallel& owner_;
  std::shared_ptr<comm::Group> group_;
  std::unique_ptr<BucketedReducer> reducer_;
  std::unique_ptr<device::OperatorHook> sync_batch_norm_;
  std::vector<at::Tensor> trained_;
  std::vector<bool> sparse_;         // whether the gradients of `trained_` are
  std::vector<at::Tensor> tensors_;  // parameters and buffers, by aliases that autograd does not watch
  std::vector<at::Tensor> buffers_;  // those of them that follow rank 0's
  bool buffers_changed_ = false;
  std::vector<c10::intrusive_ptr<Node>> held_accumulators_;
  std::unordered_set<const Node*> accumulators_;
};

/// What a rank tells the others of a reduced backward pass while ranks may run out of data.
struct Announcement {
  enum Field : std::size_t { kActive, kCountsItems, kStartsStep, kModels };
  static constexpr std::int64_t kReached = 1;  // bits of a model's field
  static constexpr std::int64_t kBuffersDue = 2;
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

  int backward(const at::Tensor& loss, const at::Tensor& weight, bool synchronize,
               const BackwardOptions& options) override {
    if (!synchronize) {
      loss.backward(weight, options.retain_graph, options.create_graph);
      return 1;
    }
    const std::vector<DataParallelReplica*> reached = reached_by(loss);
    if (joining_) {
      loss.backward(weight, options.retain_graph, options.create_graph);
      return reduce(announce(reached, &options));
    }
    for (DataParallelReplica* replica : reached) replica->before_backward(loss);
    loss.backward(weight, options.retain_graph, options.create_graph);
    for (DataParallelReplica* replica : reached) replica->after_backward();
    return group_->size();
  }

  void begin_join(bool divide_by_active) override {
    require(!options_.sync_batch_norm, ErrorCode::kUnavailable, "join_uneven_inputs",
            "with sync_batch_norm a rank without data cannot take part in the others' forward passes. Use "
            "even_batches, or batch norms that are not synchronised.");
    joining_ = true;
    divide_by_active_ = divide_by_active;
  }

  AbsentRound backward_without_data() override {
    const Round round = announce({}, nullptr);
    if (round.active == 0) return {};
    // What the others dropped, or what would be counted more often than there are active ranks.
    if (round.starts_step || divide_by_active_)
      for (DataParallelReplica* replica : round.reached)
        for (const at::Tensor& parameter : replica->trained()) parameter.mutable_grad().reset();
    reduce(round);
    return {.active = round.active, .counts_items = round.counts_items};
  }

  void end_join() override { joining_ = false; }

  params::NamedTensors rank_state() const override {
    params::NamedTensors all;
    for (std::size_t i = 0; i < replicas_.size(); ++i)
      if (const BucketedReducer* reducer = replicas_[i]->reducer())
        for (auto& [name, tensor] : reducer->compression_state())
          all.emplace_back(concat(i, ":", name), std::move(tensor));
    return all;
  }

  void load_rank_state(const params::NamedTensors& state) override {
    std::map<std::size_t, params::NamedTensors> by_replica;
    for (const auto& [name, tensor] : state) {
      const auto colon = name.find(':');
      by_replica[std::stoul(name.substr(0, colon))].emplace_back(name.substr(colon + 1), tensor);
    }
    for (std::size_t i = 0; i < replicas_.size(); ++i)
      if (BucketedReducer* reducer = replicas_[i]->reducer(); reducer != nullptr && by_replica.contains(i))
        reducer->load_compression_state(by_replica[i]);
  }

  void add(DataParallelReplica* replica) { replicas_.push_back(replica); }
  void remove(DataParallelReplica* replica) { std::erase(replicas_, replica); }

 private:
  /// What all ranks together announced.
  struct Round {
    int active = 0;
    int first_active = 0;
    bool counts_items = false;
    bool starts_step = false;
    std::vector<DataParallelReplica*> reached = {};
  };

  /// Returns what sums were divided by.
  int reduce(const Round& round) const {
    const int divisor = divide_by_active_ ? round.active : group_->size();
    for (DataParallelReplica* replica : round.reached) {
      replica->reduce(divisor);
      replica->synchronize_buffers(round.first_active);
    }
    return divisor;
  }

  /// Exchanges announcements; without options this rank has no data.
  Round announce(const std::vector<DataParallelReplica*>& reached, const BackwardOptions* options) {
    const auto fields = static_cast<std::int64_t>(Announcement::kModels + replicas_.size());
    at::Tensor mine = at::zeros({1, fields}, at::kLong);
    auto* numbers = mine.mutable_data_ptr<std::int64_t>();
    if (options != nullptr) {
      numbers[Announcement::kActive] = 1;
      numbers[Announcement::kCountsItems] = options->counts_items ? 1 : 0;
      numbers[Announcement::kStartsStep] = options->starts_step ? 1 : 0;
      for (std::size_t i = 0; i < replicas_.size(); ++i)
        if (std::ranges::find(reached, replicas_[i]) != reached.end())
          numbers[Announcement::kModels + i] =
              Announcement::kReached | (replicas_[i]->buffers_are_due() ? Announcement::kBuffersDue : 0);
    }
    const at::Tensor all = group_->gather(mine);
    Round round;
    const auto* rows = all.const_data_ptr<std::int64_t>();
    for (int rank = group_->size() - 1; rank >= 0; --rank) {
      const std::int64_t* row = rows + rank * fields;
      if (row[Announcement::kActive] == 0) continue;
      ++round.active;
      round.first_active = rank;
      round.counts_items = row[Announcement::kCountsItems] != 0;
      round.starts_step = row[Announcement::kStartsStep] != 0;
      round.reached.clear();
      for (std::size_t i = 0; i < replicas_.size(); ++i) {
        const std::int64_t model = row[Announcement::kModels + i];
        if ((model & Announcement::kReached) == 0) continue;
        round.reached.push_back(replicas_[i]);
        if (options == nullptr) replicas_[i]->make_buffers_due((model & Announcement::kBuffersDue) != 0);
      }
    }
    return round;
  }

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
  bool joining_ = false;
  bool divide_by_active_ = false;
};

DataParallelReplica::DataParallelReplica(DataParallel& owner, std::shared_ptr<comm::Group> group,
                                         const params::ParameterSet& parameters,
                                         const DataParallelOptions& options)
    : owner_(owner), group_(std::move(group)) {
  require_same_model(*group_, parameters);
  std::vector<const params::Parameter*> trained;
  for (const auto& parameter : parameters.parameters()) {
    tensors_.push_back(parameter.tensor.variable_data());
    if (!parameter.tensor.requires_grad()) continue;
    trained.push_back(&parameter);
    trained_.push_back(parameter.tensor);
    sparse_.push_back(parameter.sparse_gradient);
  }
  // variable_data() has a version counter of its own: a broadcast between two backward passes over one graph
  // must not look like a change of what the graph saved.
  for (const auto& [name, buffer] : parameters.buffers()) {
    if (!buffer.defined()) continue;
    tensors_.push_back(buffer.variable_data());
    if (options.broadcast_buffers) buffers_.push_back(tensors_.back());
  }
  copy_from(0);
  if (options.sync_batch_norm) sync_batch_norm_ = make_sync_batch_norm(group_);
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

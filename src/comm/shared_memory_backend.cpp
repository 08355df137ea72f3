#include "comm/shared_memory_backend.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

namespace hasten::comm {
namespace {

using c10d::OpType;
using std::chrono::milliseconds;

/// How long a group that is being destroyed lets calls run that nobody waits for.
constexpr milliseconds kGrace{1000};

/// A call that is done.
class FinishedWork : public c10d::Work {
 public:
  FinishedWork(int rank, OpType type, std::vector<at::Tensor> results)
      : Work(rank, type), results_(std::move(results)) {}

  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  bool wait(milliseconds) override { return true; }
  void synchronize() override {}
  std::vector<at::Tensor> result() override { return results_; }

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors());
    future->markCompleted(c10::IValue(results_));
    return future;
  }

 private:
  std::vector<at::Tensor> results_;
};

std::optional<Element> element_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return Element::kFloat32;
    case at::kDouble:
      return Element::kFloat64;
    case at::kBFloat16:
      return Element::kBFloat16;
    case at::kHalf:
      return Element::kFloat16;
    case at::kLong:
      return Element::kInt64;
    case at::kInt:
      return Element::kInt32;
    case at::kShort:
      return Element::kInt16;
    case at::kChar:
      return Element::kInt8;
    case at::kByte:
      return Element::kUInt8;
    case at::kBool:
      return Element::kBool;
    default:
      return std::nullopt;
  }
}

std::optional<Reduction> reduction_of(const c10d::ReduceOp& op, at::ScalarType type) {
  switch (op) {
    case c10d::ReduceOp::SUM:
      return Reduction::kSum;
    case c10d::ReduceOp::AVG:
      return at::isFloatingType(type) ? std::optional(Reduction::kMean) : std::nullopt;
    case c10d::ReduceOp::MAX:
      return Reduction::kMax;
    case c10d::ReduceOp::MIN:
      return Reduction::kMin;
    case c10d::ReduceOp::PRODUCT:
      return Reduction::kProduct;
    default:
      return std::nullopt;
  }
}

std::span<std::byte> bytes_of(const at::Tensor& contiguous) {
  return {static_cast<std::byte*>(contiguous.data_ptr()), contiguous.nbytes()};
}

/// Calls `f` with the bytes of a tensor in row-major order, and puts them back if they had to be copied for
/// that.
template <class F>
void with_bytes(const at::Tensor& tensor, F&& f) {
  const at::Tensor plain = tensor.detach();
  if (plain.is_contiguous()) return f(bytes_of(plain));
  const at::Tensor copy = plain.contiguous();
  f(bytes_of(copy));
  plain.copy_(copy);
}

/// The Gloo inside LibTorch is newer than the headers, by which this class would have a virtual table. The
/// function is not virtual and sits in LibTorch, so that calling it is sound; only the sanitizer believes the
/// headers.
[[gnu::no_sanitize("vptr")]] void close_connections(::gloo::Context& context) {
  context.closeConnections();
}

}  // namespace

bool GlooBackend::finish_within(milliseconds time) {
  const auto deadline = std::chrono::steady_clock::now() + time;
  std::unique_lock lock(workMutex_);
  const auto running = [](const auto& work) { return work != nullptr; };
  while (!workQueue_.empty() || std::any_of(workInProgress_.begin(), workInProgress_.end(), running)) {
    if (std::chrono::steady_clock::now() > deadline) {
      for (const auto& context : contexts_) close_connections(*context);
      return false;
    }
    lock.unlock();  // nobody tells when work has ended
    std::this_thread::sleep_for(milliseconds(1));
    lock.lock();
  }
  return true;
}

SharedMemoryBackend::SharedMemoryBackend(c10::intrusive_ptr<GlooBackend> gloo,
                                         std::shared_ptr<SharedSegment> segment, std::int64_t most_bytes,
                                         milliseconds timeout)
    : Backend(gloo->getRank(), gloo->getSize()),
      gloo_(std::move(gloo)),
      segment_(std::move(segment)),
      most_bytes_(most_bytes),
      timeout_(timeout) {}

SharedMemoryBackend::~SharedMemoryBackend() {
  segment_.reset();  // first, so that ranks that wait there learn of it
  if (gloo_->finish_within(kGrace)) return;
  // A thread of Gloo waits for ranks that will not come, and cannot be woken.
  std::thread([gloo = std::move(gloo_)]() mutable { gloo.reset(); }).detach();
}

void SharedMemoryBackend::setTimeout(milliseconds timeout) {
  timeout_ = timeout;
  gloo_->setTimeout(timeout);
}

bool SharedMemoryBackend::fits(const at::Tensor& tensor) const {
  return segment_ != nullptr && tensor.layout() == at::kStrided && tensor.is_cpu() &&
         !tensor.is_quantized() && !tensor.is_conj() && !tensor.is_neg() &&
         static_cast<std::int64_t>(tensor.nbytes()) <= most_bytes_;
}

SharedSegment::Call SharedMemoryBackend::call(std::string_view name, milliseconds timeout) const {
  return {name, timeout.count() > 0 ? timeout : timeout_};
}

c10d::ProcessGroupGloo& SharedMemoryBackend::gloo_for(std::string_view name) {
  if (segment_) segment_->throw_if_failed(name);
  gloo_is_busy_ = true;
  return *gloo_;
}

void SharedMemoryBackend::exchange(std::string_view name, std::span<const std::byte> mine,
                                   std::span<std::byte> all) {
  if (segment_) {
    std::vector<std::byte*> outputs;
    for (int rank = 0; rank < getSize(); ++rank)
      outputs.push_back(all.data() + static_cast<std::size_t>(rank) * mine.size());
    const std::lock_guard lock(mutex_);
    return segment_->all_gather(call(name, timeout_), mine, outputs);
  }
  if (mine.empty()) return;
  at::Tensor input = at::empty({static_cast<std::int64_t>(mine.size())}, at::kByte);
  std::memcpy(input.data_ptr(), mine.data(), mine.size());
  at::Tensor output = at::from_blob(all.data(), {static_cast<std::int64_t>(all.size())}, at::kByte);
  gloo_->_allgather_base(output, input)->wait();
}

void SharedMemoryBackend::count(const Tensors& tensors) {
  for (const at::Tensor& tensor : tensors)
    bytes_given_ += static_cast<std::int64_t>(
        tensor.is_sparse() ? tensor._values().nbytes() + tensor._indices().nbytes() : tensor.nbytes());
}

SharedMemoryBackend::WorkPointer SharedMemoryBackend::allreduce(Tensors& tensors,
                                                                const c10d::AllreduceOptions& options) {
  count(tensors);
  if (tensors.size() == 1 && fits(tensors[0])) {
    const auto element = element_of(tensors[0].scalar_type());
    const auto reduction = reduction_of(options.reduceOp, tensors[0].scalar_type());
    if (element && reduction) {
      const std::lock_guard lock(mutex_);
      with_bytes(tensors[0], [&](std::span<std::byte> bytes) {
        segment_->all_reduce(call("all_reduce", options.timeout), bytes, *element, *reduction);
      });
      return c10::make_intrusive<FinishedWork>(getRank(), OpType::ALLREDUCE, tensors);
    }
  }
  return gloo_for("all_reduce").allreduce(tensors, options);
}

SharedMemoryBackend::WorkPointer SharedMemoryBackend::broadcast(Tensors& tensors,
                                                                const c10d::BroadcastOptions& options) {
  count(tensors);
  if (tensors.size() != 1 || !fits(tensors[0])) return gloo_for("broadcast").broadcast(tensors, options);
  const std::lock_guard lock(mutex_);
  with_bytes(tensors[0], [&](std::span<std::byte> bytes) {
    segment_->broadcast(call("broadcast", options.timeout), bytes, static_cast<int>(options.rootRank));
  });
  return c10::make_intrusive<FinishedWork>(getRank(), OpType::BROADCAST, tensors);
}

SharedMemoryBackend::WorkPointer SharedMemoryBackend::allgather(std::vector<Tensors>& outputs,
                                                                Tensors& inputs,
                                                                const c10d::AllgatherOptions& options) {
  count(inputs);
  const auto size = static_cast<std::size_t>(getSize());
  bool shared = inputs.size() == 1 && outputs.size() == 1 && outputs[0].size() == size && fits(inputs[0]);
  for (std::size_t i = 0; shared && i < size; ++i)
    shared = outputs[0][i].scalar_type() == inputs[0].scalar_type() &&
             outputs[0][i].sizes() == inputs[0].sizes() && outputs[0][i].is_cpu();
  if (!shared) return gloo_for("all_gather").allgather(outputs, inputs, options);
  Tensors plain;
  std::vector<std::byte*> pointers;
  for (const at::Tensor& output : outputs[0]) {
    plain.push_back(output.is_contiguous() ? output.detach() : at::empty(output.sizes(), output.options()));
    pointers.push_back(static_cast<std::byte*>(plain.back().data_ptr()));
  }
  {
    const std::lock_guard lock(mutex_);
    const at::Tensor input = inputs[0].detach().contiguous();
    segment_->all_gather(call("all_gather", options.timeout), bytes_of(input), pointers);
  }
  for (std::size_t i = 0; i < size; ++i)
    if (!outputs[0][i].is_contiguous()) outputs[0][i].detach().copy_(plain[i]);
  return c10::make_intrusive<FinishedWork>(getRank(), OpType::ALLGATHER, outputs[0]);
}

SharedMemoryBackend::WorkPointer SharedMemoryBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                                      const c10d::AllgatherOptions& options) {
  count({input});
  const bool shared = fits(input) && output.is_cpu() && output.is_contiguous() &&
                      output.nbytes() == input.nbytes() * static_cast<std::size_t>(getSize());
  if (!shared) return gloo_for("all_gather")._allgather_base(output, input, options);
  std::vector<std::byte*> pointers;
  for (int rank = 0; rank < getSize(); ++rank)
    pointers.push_back(static_cast<std::byte*>(output.data_ptr()) +
                       static_cast<std::size_t>(rank) * input.nbytes());
  const std::lock_guard lock(mutex_);
  const at::Tensor plain = input.detach().contiguous();
  segment_->all_gather(call("all_gather", options.timeout), bytes_of(plain), pointers);
  return c10::make_intrusive<FinishedWork>(getRank(), OpType::_ALLGATHER_BASE, Tensors{output});
}

SharedMemoryBackend::WorkPointer SharedMemoryBackend::barrier(const c10d::BarrierOptions& options) {
  // A barrier also ends the calls before it, which only Gloo knows how to wait for where they are Gloo's.
  if (segment_ == nullptr || std::exchange(gloo_is_busy_, false)) {
    if (segment_) segment_->throw_if_failed("barrier");
    return gloo_->barrier(options);
  }
  const std::lock_guard lock(mutex_);
  segment_->barrier(call("barrier", options.timeout));
  return c10::make_intrusive<FinishedWork>(getRank(), OpType::BARRIER, Tensors());
}

// ---- what Gloo alone does ----

SharedMemoryBackend::WorkPointer SharedMemoryBackend::allreduce_sparse(
    Tensors& tensors, const c10d::AllreduceOptions& options) {
  return gloo_for("all_reduce_sparse").allreduce_sparse(tensors, options);
}

SharedMemoryBackend::WorkPointer SharedMemoryBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  return gloo_for("all_reduce_coalesced").allreduce_coalesced(tensors, options);
}

SharedMemoryBackend::WorkPointer SharedMemoryBackend::reduce(Tensors& tensors,
                                                             const c10d::ReduceOptions& options) {
  return gloo_for("reduce").reduce(tensors, options);
}

SharedMemoryBackend::WorkPointer SharedMemoryBackend::allgather_coalesced(
    std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  return gloo_for("all_gather_coalesced").allgather_coalesced(outputs, inputs, options);
}

SharedMemoryBackend::WorkPointer SharedMemoryBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  return gloo_for("all_gather_coalesced").allgather_into_tensor_coalesced(outputs, inputs, options);
}

SharedMemoryBackend::WorkPointer SharedMemoryBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                             const c10d::GatherOptions& options) {
  return gloo_for("gather").gather(outputs, inputs, options);
}

SharedMemoryBackend::WorkPointer SharedMemoryBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                              const c10d::ScatterOptions& options) {
  return gloo_for("scatter").scatter(outputs, inputs, options);
}

SharedMemoryBackend::WorkPointer SharedMemoryBackend::reduce_scatter(
    Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& options) {
  return gloo_for("reduce_scatter").reduce_scatter(outputs, inputs, options);
}

SharedMemoryBackend::WorkPointer SharedMemoryBackend::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  count({input});
  return gloo_for("reduce_scatter")._reduce_scatter_base(output, input, options);
}

SharedMemoryBackend::WorkPointer SharedMemoryBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  return gloo_for("reduce_scatter_coalesced").reduce_scatter_tensor_coalesced(outputs, inputs, options);
}

SharedMemoryBackend::WorkPointer SharedMemoryBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                                               const c10d::AllToAllOptions& options) {
  return gloo_for("all_to_all").alltoall(outputs, inputs, options);
}

SharedMemoryBackend::WorkPointer SharedMemoryBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                                    std::vector<std::int64_t>& output_sizes,
                                                                    std::vector<std::int64_t>& input_sizes,
                                                                    const c10d::AllToAllOptions& options) {
  return gloo_for("all_to_all").alltoall_base(output, input, output_sizes, input_sizes, options);
}

// Only two ranks take part in these, so that they must not change how the next barrier goes.

SharedMemoryBackend::WorkPointer SharedMemoryBackend::send(Tensors& tensors, int to, int tag) {
  return gloo_->send(tensors, to, tag);
}

SharedMemoryBackend::WorkPointer SharedMemoryBackend::recv(Tensors& tensors, int from, int tag) {
  return gloo_->recv(tensors, from, tag);
}

SharedMemoryBackend::WorkPointer SharedMemoryBackend::recvAnysource(Tensors& tensors, int tag) {
  return gloo_->recvAnysource(tensors, tag);
}

void SharedMemoryBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool all_ranks) {
  gloo_for("barrier").monitoredBarrier(options, all_ranks);
}

}  // namespace hasten::comm

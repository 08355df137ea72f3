#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "comm/shared_segment.h"

namespace hasten::comm {

/// Gloo, with a way to give up work that will never end.
class GlooBackend : public c10d::ProcessGroupGloo {
 public:
  using c10d::ProcessGroupGloo::ProcessGroupGloo;
  /// Waits for queued and running work. If some has not ended in time, breaks the connections, so that other
  /// ranks do not wait for this one, and returns false: then the destructor may block until the group's
  /// time-out.
  bool finish_within(std::chrono::milliseconds time);
};

/// What c10d calls for tensors on the CPU. Reductions, broadcasts, gathers and barriers go through shared
/// memory when all ranks are on one host and the data is not too large, everything else through Gloo. Which
/// way a call goes follows from the operation, the type and the size alone, so all ranks choose alike.
///
/// A call through shared memory blocks until it is done and returns a finished `Work`.
class SharedMemoryBackend : public c10d::Backend {
 public:
  /// Calls that move at most `most_bytes` go through `segment`. Without a segment Gloo does everything.
  SharedMemoryBackend(c10::intrusive_ptr<GlooBackend> gloo, std::shared_ptr<SharedSegment> segment,
                      std::int64_t most_bytes, std::chrono::milliseconds timeout);
  ~SharedMemoryBackend() override;

  /// Fills `all` with the `mine` of every rank, rank after rank. Blocks. `name` is what errors call it.
  void exchange(std::string_view name, std::span<const std::byte> mine, std::span<std::byte> all);
  /// Bytes of the tensors that this rank has given to collectives so far.
  [[nodiscard]] std::int64_t bytes_given() const { return bytes_given_; }
  /// Null where Gloo does everything.
  [[nodiscard]] const std::shared_ptr<SharedSegment>& segment() const { return segment_; }

  const std::string getBackendName() const override { return "shared_memory"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return gloo_->getBackendOptions(); }
  void setTimeout(std::chrono::milliseconds timeout) override;

  using Tensors = std::vector<at::Tensor>;
  using WorkPointer = c10::intrusive_ptr<c10d::Work>;

  WorkPointer allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPointer broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPointer allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                        const c10d::AllgatherOptions& options) override;
  WorkPointer _allgather_base(at::Tensor& output, at::Tensor& input,
                              const c10d::AllgatherOptions& options) override;
  WorkPointer barrier(const c10d::BarrierOptions& options) override;

  // Gloo alone does these.
  WorkPointer allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPointer allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  WorkPointer reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPointer allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                  const c10d::AllgatherOptions& options) override;
  WorkPointer allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const c10d::AllgatherOptions& options) override;
  WorkPointer gather(std::vector<Tensors>& outputs, Tensors& inputs,
                     const c10d::GatherOptions& options) override;
  WorkPointer scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                      const c10d::ScatterOptions& options) override;
  WorkPointer reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                             const c10d::ReduceScatterOptions& options) override;
  WorkPointer _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                   const c10d::ReduceScatterOptions& options) override;
  WorkPointer reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const c10d::ReduceScatterOptions& options) override;
  WorkPointer alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  WorkPointer alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_sizes,
                            std::vector<std::int64_t>& input_sizes,
                            const c10d::AllToAllOptions& options) override;
  WorkPointer send(Tensors& tensors, int to, int tag) override;
  WorkPointer recv(Tensors& tensors, int from, int tag) override;
  WorkPointer recvAnysource(Tensors& tensors, int tag) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool all_ranks) override;
  void setSequenceNumberForGroup() override { gloo_->setSequenceNumberForGroup(); }
  std::uint64_t getSequenceNumberForGroup() override { return gloo_->getSequenceNumberForGroup(); }

 private:
  [[nodiscard]] bool fits(const at::Tensor& tensor) const;
  [[nodiscard]] SharedSegment::Call call(std::string_view name, std::chrono::milliseconds timeout) const;
  /// Gloo, for a collective; fails at once where the group has failed before.
  c10d::ProcessGroupGloo& gloo_for(std::string_view name);

  c10::intrusive_ptr<GlooBackend> gloo_;
  std::shared_ptr<SharedSegment> segment_;
  std::int64_t most_bytes_;
  std::chrono::milliseconds timeout_;
  std::mutex mutex_;  // one call at a time in the segment
  void count(const Tensors& tensors);

  std::atomic<std::int64_t> bytes_given_{0};
  bool gloo_is_busy_ = false;  // a collective went to Gloo since the last barrier
};

}  // namespace hasten::comm

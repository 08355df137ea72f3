#pragma once

#include <array>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <hasten/base/error.h>
#include <hasten/comm/group.h>

#include "comm/shared_memory_backend.h"

namespace hasten::comm {

enum class Operation : std::int64_t {
  kAllReduce,
  kBroadcast,
  kGather,
  kGatherVaried,
  kGatherShapes,
  kAllGatherBytes,
  kBroadcastBytes,
  kBarrier,
  kAllReduceAsync,
  kReduceScatter,
  kAllGatherInto
};

/// What a rank is about to do, told to the others first.
struct Notice {
  static constexpr std::size_t kMostDimensions = 27;

  Operation operation = Operation::kBarrier;
  std::int64_t detail = 0;  ///< the root, or the `ReduceOp`
  std::int64_t type = 0;
  std::int64_t device = 0;
  std::int64_t dimensions = 0;
  std::array<std::int64_t, kMostDimensions> sizes{};

  [[nodiscard]] at::ScalarType scalar_type() const { return static_cast<at::ScalarType>(type); }
  [[nodiscard]] at::IntArrayRef shape() const { return {sizes.data(), static_cast<std::size_t>(dimensions)}; }
  [[nodiscard]] bool operator==(const Notice&) const = default;
  /// "all_reduce (sum) of float32 {2, 3}".
  [[nodiscard]] std::string text() const;
};

/// Whether the notices of all ranks must be equal, or only tell the same operation and detail.
enum class Agreement { kTensors, kOperation };

/// Members are destroyed in reverse: first the collectives, last the store, which on rank 0 serves the
/// others.
struct Group::State {
  int rank = 0;
  int size = 1;
  at::Device device = c10::DeviceType::CPU;
  GroupOptions options = {};
  std::string main_address = {};
  c10::intrusive_ptr<c10d::Store> store = {};
  c10::intrusive_ptr<SharedMemoryBackend> local = {};  ///< null for a process alone
  c10::intrusive_ptr<c10d::ProcessGroup> process_group = {};
  std::map<std::vector<int>, int> subgroups = {};  ///< how many were made of the same ranks
  std::int64_t notices = 0;
  std::shared_ptr<const bool> lives = std::make_shared<bool>(true);  ///< pending calls see it go

  /// Makes a group of the processes that share `store`.
  static std::unique_ptr<State> assemble(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                         const at::Device& device, const GroupOptions& options,
                                         const std::string& main_address);

  void check_rank(std::string_view name, const char* what, int which) const;
  void check_other_rank(std::string_view name, int which) const;
  [[nodiscard]] c10::intrusive_ptr<c10d::Backend> backend_for(const at::Tensor& tensor) const;

  /// Tells all ranks what this one is about to do and returns what each is. Throws `kMismatch` on all ranks
  /// alike when they do not agree.
  std::vector<Notice> agree(std::string_view name, Operation operation, std::int64_t detail,
                            const at::Tensor& tensor, Agreement agreement,
                            std::string_view remedy = "All ranks must call the same.");

  /// `agree` on tensors, in debug mode only.
  void agree_if_asked(std::string_view name, Operation operation, std::int64_t detail,
                      const at::Tensor& tensor) {
    if (options.debug) (void)agree(name, operation, detail, tensor, Agreement::kTensors);
  }

  /// Starts a call of c10d and waits for it.
  template <class Start>
  void complete(std::string_view name, Start&& start) {
    try {
      start()->wait();
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      fail_from(name, error, lost_ranks());
    }
  }

  /// Starts a call of c10d.
  template <class Start>
  Pending begin(std::string_view name, Start&& start);

  /// Reduces a contiguous tensor of a type that the back ends know.
  void reduce_in_place(std::string_view name, const at::Tensor& contiguous, ReduceOp op);
  /// A reduced copy of any tensor that can be reduced.
  at::Tensor reduced(std::string_view name, const at::Tensor& tensor, ReduceOp op);
  void broadcast_contiguous(std::string_view name, const at::Tensor& contiguous, int root);
  /// {n} bytes, as many on every rank, become {ranks, n}.
  at::Tensor gather_bytes(std::string_view name, at::Tensor bytes);

  /// Fills `all` with the bytes of every rank; `mine` is equally long on all.
  void exchange(std::string_view name, std::span<const std::byte> mine, std::span<std::byte> all);

  [[nodiscard]] std::vector<int> lost_ranks() const;
  /// The ranks that do not report, within a moment, that they failed in the same call as this one. Empty if
  /// unknown.
  [[nodiscard]] std::vector<int> ranks_not_in_this_call() const;
  /// Reports c10d's error as one of this library.
  [[noreturn]] static void fail_from(std::string_view name, const std::exception& error,
                                     const std::vector<int>& lost);
};

/// Throws `kInvalidArgument` for a tensor that the collectives do not take.
void check_supported(std::string_view name, const at::Tensor& tensor);

/// The bytes of a contiguous tensor with at least one element, as a view.
[[nodiscard]] at::Tensor byte_view(const at::Tensor& contiguous);

[[nodiscard]] c10d::ReduceOp::RedOpType c10d_op(ReduceOp op);

}  // namespace hasten::comm

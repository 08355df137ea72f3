#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <hasten/config/process.h>

namespace c10d {
class ProcessGroup;
}

namespace hasten::comm {

/// How the ranks' values become one.
enum class ReduceOp { kSum, kMean, kMax, kMin, kProduct };

struct GroupOptions {
  std::chrono::milliseconds timeout{30 * 60 * 1000};  ///< how long a call waits for the other ranks
  bool shared_memory = true;                          ///< use it between ranks of one host
  /// Calls that return at once compare what the ranks call and their shapes first, as blocking ones always
  /// do.
  bool debug = false;
};

/// A call that may still be running. Dropping it without `wait` is allowed, but then nothing says whether it
/// worked.
class Pending {
 public:
  /// One that is done.
  Pending() = default;

  /// Blocks until the call is done: its outputs may be read and its inputs changed. Throws what the call's
  /// blocking form would throw. Waiting again does nothing.
  void wait();

 private:
  friend class Group;
  struct State;
  explicit Pending(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

/// The processes of a run, or some of them, and what they do together.
///
/// Unless it says otherwise, a function must be called by every rank of the group, in the same order, from
/// one thread at a time, and blocks until the others have called it too (on an accelerator the exchange
/// itself is queued on the current stream). Tensors may be of any dtype but quantised ones, of any shape (0-d
/// and empty ones too), with any strides, on the CPU or on the group's device. Results are new, contiguous,
/// on the device of the input, and outside autograd.
///
/// Errors name the operation, the ranks, and the shapes where they differ:
/// `kMismatch` when the ranks call different things, found before anything is exchanged, so the group stays
/// usable; `kTimeout` when a rank does not come in time; `kPeerLost` when one ended or left. After the last
/// two the group is of no more use. `kInvalidArgument` for what is not supported.
///
/// A group may be destroyed at any time, in any order against other ranks, tensors and pending calls. Calls
/// that are still pending get one more second and then fail; other ranks are not waited for. Whoever holds
/// `process_group()` keeps the connections.
class Group {
 public:
  /// One process alone: every collective returns what it was given.
  static std::shared_ptr<Group> solo(const at::Device& device);

  /// Meets the other processes of a run. Throws `kTimeout`, with the missing ranks, when some do not come,
  /// and `kUnavailable` when the port is in use. On one machine nothing listens beyond loopback.
  /// SIGPIPE is ignored from then on, unless the program handles it: writing to a lost rank is an error.
  static std::shared_ptr<Group> connect(const config::Process& process, const at::Device& device,
                                        const GroupOptions& options = {});

  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  [[nodiscard]] int rank() const;
  [[nodiscard]] int size() const;
  [[nodiscard]] const at::Device& device() const;
  /// Whether small tensors on the CPU go through shared memory.
  [[nodiscard]] bool uses_shared_memory() const;
  /// Bytes of CPU tensors that this rank has given to collectives so far: what compression saves.
  [[nodiscard]] std::int64_t bytes_given() const;
  /// c10d's view of the group, for its `Reducer`. Null for a process alone.
  [[nodiscard]] const c10::intrusive_ptr<c10d::ProcessGroup>& process_group() const;

  /// The reduction of all ranks' tensors, element by element; the same bits on every rank. Shapes and dtypes
  /// must agree. The mean of integers is float32. The sum of truth values is their number, int64, and the
  /// mean their part, float32; complex numbers have only these two.
  [[nodiscard]] at::Tensor all_reduce(const at::Tensor& tensor, ReduceOp op);
  /// As `all_reduce`, into `tensor` itself. The mean of integers is refused, since it cannot be stored there,
  /// and so are sum and mean of truth values.
  void all_reduce_(const at::Tensor& tensor, ReduceOp op);
  /// Replaces `tensor` by that of rank `root`.
  void broadcast_(const at::Tensor& tensor, int root = 0);
  /// All ranks' tensors joined along dimension 0, in the order of ranks: {n, ...} becomes {ranks * n, ...},
  /// and 0-d becomes {ranks}. Shapes and dtypes must agree.
  [[nodiscard]] at::Tensor gather(const at::Tensor& tensor);
  /// All ranks' tensors, in the order of ranks. Shapes and dtypes may differ.
  [[nodiscard]] std::vector<at::Tensor> gather_varied(const at::Tensor& tensor);
  /// The shapes of all ranks' tensors, in the order of ranks. `operation` is what errors call it.
  [[nodiscard]] std::vector<std::vector<std::int64_t>> gather_shapes(
      const at::Tensor& tensor, std::string_view operation = "gather_shapes");
  /// All ranks' bytes, of any lengths, in the order of ranks.
  [[nodiscard]] std::vector<std::string> all_gather_bytes(const std::string& bytes);
  /// The bytes of rank `root`; what the others give is ignored.
  [[nodiscard]] std::string broadcast_bytes(const std::string& bytes, int root = 0);
  /// Returns when all ranks have called it and this rank's device has done its work.
  void barrier();

  /// The following return at once where they can. Shapes are compared between ranks only with
  /// `GroupOptions::debug`. Tensors must be
  /// contiguous and may not be touched until `wait`.

  /// Reduces `tensor` in place. For floats, 8, 32 and 64-bit integers.
  [[nodiscard]] Pending all_reduce_async(const at::Tensor& tensor, ReduceOp op);
  /// Cuts the reduction of all ranks' `input` into as many equal parts as there are ranks and gives each rank
  /// its own. `input` has as many elements as `output` times the ranks. Dtypes as above.
  [[nodiscard]] Pending reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op);
  /// Fills `output` with all ranks' `input`, one after another.
  [[nodiscard]] Pending all_gather_into(const at::Tensor& output, const at::Tensor& input);
  /// Only the two ranks concerned call these. Messages between two ranks are told apart by `tag`. `send` may
  /// not be done before the other rank has called `recv`.
  [[nodiscard]] Pending send(const at::Tensor& tensor, int to, int tag = 0);
  /// `tensor` must have the sender's number of bytes.
  [[nodiscard]] Pending recv(const at::Tensor& tensor, int from, int tag = 0);

  /// A group of some ranks of this one, numbered anew in the order given, with this one's device and options.
  /// Only they call it. They meet through this group's store, so rank 0 of the run must still be there.
  [[nodiscard]] std::shared_ptr<Group> subgroup(const std::vector<int>& ranks);

 private:
  friend class Pending;
  struct State;
  explicit Group(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// "float32 {2, 3}".
[[nodiscard]] std::string describe(at::ScalarType type, at::IntArrayRef shape);

}  // namespace hasten::comm

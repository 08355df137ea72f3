#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <hasten/tree/tree.h>

namespace hasten::device {

/// Memory of one device, in bytes. On the CPU it is the process's resident memory and the machine's.
struct Memory {
  std::int64_t used = 0;
  std::int64_t peak = 0;
  std::int64_t total = 0;
};

/// One kind of device. The library never asks which kind it runs on; it asks this.
class Backend {
 public:
  virtual ~Backend() = default;

  [[nodiscard]] virtual c10::DeviceType type() const = 0;
  /// "cpu", "cuda".
  [[nodiscard]] virtual std::string_view name() const = 0;
  /// How many devices this process can use; 0 when there is none or this build cannot drive them.
  [[nodiscard]] virtual int count() const = 0;
  /// Why `count` is 0, as a sentence with a remedy.
  [[nodiscard]] virtual std::string unavailable_because() const = 0;
  /// Makes a device the calling thread's current one.
  virtual void select(int index) const = 0;
  /// Waits until all work that was queued on the device is done.
  virtual void synchronize(int index) const = 0;
  /// Told after each optimizer update; a device that builds programs lazily runs one here.
  virtual void step_boundary() const = 0;
  /// Whether copies to the device are faster from page-locked memory and may overlap with computing.
  [[nodiscard]] virtual bool wants_pinned_memory() const = 0;
  /// Whether its arithmetic units multiply bf16 themselves, so that bf16 is faster than fp32.
  [[nodiscard]] virtual bool has_fast_bf16() const = 0;
  [[nodiscard]] virtual Memory memory(int index) const = 0;
  /// Keeps memory that tensors free for the next ones, for the rest of the process, instead of giving it back
  /// to the system and paying for its pages again. Nothing for devices whose allocator does so anyway.
  virtual void keep_freed_memory() const = 0;
  /// Gives memory that no tensor uses back to the system.
  virtual void release_memory() const = 0;
  /// The name of c10d's collective backend that moves this device's tensors: "gloo", "nccl".
  [[nodiscard]] virtual std::string_view collectives() const = 0;
};

/// The back end of a kind of device. Throws `kUnavailable` for a kind this library does not know.
[[nodiscard]] const Backend& backend(c10::DeviceType type);
[[nodiscard]] inline const Backend& backend(const at::Device& device) {
  return backend(device.type());
}

/// All kinds this library knows, the most wanted first; each answers whether it can be used.
[[nodiscard]] const std::vector<const Backend*>& backends();

/// The device for a process that is number `local_rank` on its host: the first kind that has one, or the CPU
/// when `cpu` is set. Throws `kUnavailable` when there are accelerators but fewer than `local_rank` + 1.
[[nodiscard]] at::Device choose(bool cpu, int local_rank);

/// The device's number among those of its kind; 0 where it names none.
[[nodiscard]] inline int index(const at::Device& device) {
  return device.has_index() ? device.index() : 0;
}

/// The state of a device's default random generator, as a byte tensor on the CPU, and its restoring.
[[nodiscard]] at::Tensor random_state(const at::Device& device);
void set_random_state(const at::Device& device, const at::Tensor& state);

/// Seeds the default generators of all devices.
void seed(std::uint64_t value);

/// Copies a tensor to a device, without waiting where the source is page-locked. A tensor that is there is
/// returned as it is.
[[nodiscard]] at::Tensor copy_to(const at::Tensor& tensor, const at::Device& device, bool non_blocking);

/// The batch with its tensors copied to a device. Entries of its outermost map with one of the keys to skip
/// stay where they are.
template <class Batch>
[[nodiscard]] Batch send_to_device(Batch batch, const at::Device& device, bool non_blocking = false,
                                   const std::vector<std::string>& skip_keys = {}) {
  const auto move = [&](const at::Tensor& tensor) { return copy_to(tensor, device, non_blocking); };
  if constexpr (requires {
                  typename Batch::mapped_type;
                  batch.begin()->first == skip_keys[0];
                }) {
    for (auto& [key, value] : batch)
      if (std::find(skip_keys.begin(), skip_keys.end(), key) == skip_keys.end())
        value = tree::map(std::move(value), move);
    return batch;
  } else {
    return tree::map(std::move(batch), move);
  }
}

}  // namespace hasten::device

#include <ATen/Context.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/Exception.h>

#include "device/backends.h"

namespace hasten::device {
namespace {

class Cuda final : public Backend {
 public:
  c10::DeviceType type() const override { return c10::DeviceType::CUDA; }
  std::string_view name() const override { return "cuda"; }
  // Asking starts CUDA's driver in this process: a child forked afterwards cannot use it.
  int count() const override { return c10::cuda::device_count(); }

  std::string unavailable_because() const override {
    try {
      (void)c10::cuda::device_count_ensure_non_zero();
      return {};
    } catch (const c10::Error& error) {
      return std::string(error.what_without_backtrace()) + " Install NVIDIA's driver, or ask for the CPU.";
    }
  }

  void select(int index) const override { c10::cuda::set_device(static_cast<c10::DeviceIndex>(index)); }

  void synchronize(int index) const override {
    const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(index));
    c10::cuda::device_synchronize();
  }

  void step_boundary() const override {}
  void keep_freed_memory() const override {}
  void release_memory() const override {
    // Nothing is kept, and the driver is not started for it, before the first tensor.
    if (auto* allocator = c10::cuda::CUDACachingAllocator::get(); allocator->initialized())
      allocator->emptyCache();
  }
  bool wants_pinned_memory() const override { return true; }
  std::string_view collectives() const override { return "nccl"; }

  // From Ampere (compute capability 8) on.
  bool has_fast_bf16() const override { return count() > 0 && at::cuda::getDeviceProperties(0)->major >= 8; }

  /// What LibTorch's caching allocator has handed out, not what it keeps for later.
  Memory memory(int index) const override {
    // The allocator knows no device before LibTorch's CUDA was started.
    at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
    const auto device = static_cast<c10::DeviceIndex>(index);
    auto* allocator = c10::cuda::CUDACachingAllocator::get();
    const auto stats = allocator->getDeviceStats(device);
    const auto& bytes =
        stats.allocated_bytes[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
    return {.used = bytes.current,
            .peak = bytes.peak,
            .total = static_cast<std::int64_t>(allocator->getMemoryInfo(device).second)};
  }
};

}  // namespace

std::unique_ptr<Backend> make_cuda() {
  return std::make_unique<Cuda>();
}

}  // namespace hasten::device

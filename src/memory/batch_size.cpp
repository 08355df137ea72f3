#include <new>
#include <string_view>

#include <ATen/ops/tensor.h>

#include <hasten/base/error.h>
#include <hasten/comm/group.h>
#include <hasten/device/device.h>
#include <hasten/memory/batch_size.h>

namespace hasten::memory {

bool is_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return true;
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return true;
  if (dynamic_cast<const Error*>(&error) != nullptr) return false;
  // The CPU's allocator and cuDNN say it in words alone.
  const std::string_view text = error.what();
  for (const std::string_view sign :
       {"DefaultCPUAllocator: can't allocate memory", "DefaultCPUAllocator: not enough memory",
        "CUDA out of memory", "CUDNN_STATUS_ALLOC_FAILED", "CUBLAS_STATUS_ALLOC_FAILED",
        "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED."})
    if (text.find(sign) != std::string_view::npos) return true;
  return false;
}

namespace detail {

std::int64_t first(const BatchSizeOptions& options) {
  require(options.starting_batch_size >= 1, ErrorCode::kInvalidArgument, "find_executable_batch_size",
          "starting_batch_size is ", options.starting_batch_size, ", but must be at least 1.");
  return options.starting_batch_size;
}

std::int64_t smaller(std::int64_t size, const BatchSizeOptions& options) {
  const std::int64_t next = options.halve ? size / 2 : size * 9 / 10;
  require(next >= 1, ErrorCode::kUnavailable, "find_executable_batch_size",
          "memory ran out with every batch size from ", options.starting_batch_size,
          " down to 1. Use a smaller model, lower precision, or a device with more memory.");
  return next;
}

bool failed_anywhere(bool failed, const BatchSizeOptions& options) {
  if (options.group == nullptr) return failed;
  return options.group->all_reduce(at::tensor({failed ? 1 : 0}, at::kLong), comm::ReduceOp::kMax)
             .item<std::int64_t>() != 0;
}

void release() {
  for (const device::Backend* backend : device::backends()) backend->release_memory();
}

}  // namespace detail

}  // namespace hasten::memory

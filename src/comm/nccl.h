#pragma once

#include <chrono>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace hasten::comm {

/// c10d's NCCL for the tensors of one CUDA device. Every rank must call it. A build without CUDA throws
/// `kUnavailable`.
c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                            const at::Device& device, std::chrono::milliseconds timeout);

}  // namespace hasten::comm

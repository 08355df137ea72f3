#pragma once

#include <memory>

#include <hasten/comm/group.h>
#include <hasten/device/operator_hook.h>

namespace hasten::parallel {

/// Makes every `torch::nn::BatchNorm` that trains within a forward pass take its mean and variance over the
/// batches of all ranks, as PyTorch's `SyncBatchNorm` does: with small batches a rank's own are too noisy.
/// Every rank must run the same batch norms in the same order.
[[nodiscard]] std::unique_ptr<device::OperatorHook> make_sync_batch_norm(std::shared_ptr<comm::Group> group);

}  // namespace hasten::parallel

#include "train/rank_check.h"

#include <span>
#include <string>
#include <vector>

#include <ATen/ops/from_blob.h>

#include <hasten/base/crc.h>
#include <hasten/base/error.h>

#include "train/run.h"

namespace hasten::detail {
namespace {

/// Of a tensor's bits; 0 for none.
std::int64_t fingerprint(const at::Tensor& tensor) {
  if (!tensor.defined()) return 0;
  const at::Tensor dense = tensor.is_sparse() ? tensor.to_dense() : tensor;
  const at::Tensor bytes = dense.detach().to(at::kCPU).contiguous();
  return 1 + static_cast<std::int64_t>(
                 crc32c({static_cast<const std::byte*>(bytes.const_data_ptr()), bytes.nbytes()}));
}

}  // namespace

void require_equal_on_all_ranks(const Run& run, const OptimizerRecord& record, Compared what) {
  if (run.group->size() == 1) return;
  const std::vector<at::Tensor> parameters = record.parameters();
  std::vector<std::int64_t> prints;
  for (const at::Tensor& parameter : parameters)
    prints.push_back(fingerprint(what == Compared::kGradients ? parameter.grad() : parameter));
  const auto count = static_cast<std::int64_t>(prints.size());
  const at::Tensor all = run.group->gather(at::from_blob(prints.data(), {1, count}, at::kLong));
  const auto* rows = all.const_data_ptr<std::int64_t>();
  std::string differing;
  std::string names;
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < prints.size(); ++i) {
    std::string ranks;
    for (int rank = 1; rank < run.group->size(); ++rank)
      if (rows[rank * count + static_cast<std::int64_t>(i)] != rows[i])
        ranks += concat(ranks.empty() ? "" : ", ", rank);
    if (ranks.empty()) continue;
    if (wrong++ == 0) {
      names = run.name_of(parameters[i], i);
      differing = ranks;
    }
  }
  require(wrong == 0, ErrorCode::kMismatch, "step", "update ", record.updates + 1, ": the ",
          what == Compared::kGradients ? "gradient" : "weights", " of parameter ", names, " on rank ",
          differing, " differ from rank 0's; ", wrong, " of ", prints.size(),
          " parameters do. Look for what only some ranks do: a weight written to, a loss computed outside of "
          "the accelerator's backward, a random choice that should be the same on all.");
}

}  // namespace hasten::detail

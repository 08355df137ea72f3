#include <ATen/ops/tensor.h>

#include <hasten/base/error.h>
#include <hasten/comm/group.h>

#include "train/run.h"

/// Loops that have different numbers of batches on different ranks.
namespace hasten::detail {

void begin_join(Run& run, const JoinOptions& options) {
  require(!run.joining, ErrorCode::kFailedPrecondition, "join_uneven_inputs",
          "another such block is open. Close it first.");
  run.strategy->begin_join(!options.divide_by_initial_world_size);
  run.joining = true;
  if (!options.even_batches) return;
  run.loaders.for_each([&](LoaderRecord& record) {
    record.even_batches_before = record.loader->options().even_batches;
    record.loader->set_even_batches(*options.even_batches);
  });
}

void abandon_join(Run& run) noexcept {
  run.joining = false;
  run.strategy->end_join();
}

void end_join(Run& run) {
  bool was_absent = false;
  while (true) {
    const parallel::AbsentRound round = run.strategy->backward_without_data();
    if (round.active == 0) break;
    was_absent = true;
    if (round.counts_items) (void)run.sum_of_items();
  }
  abandon_join(run);
  run.loaders.for_each([](LoaderRecord& record) {
    if (record.even_batches_before) record.loader->set_even_batches(*record.even_batches_before);
    record.even_batches_before.reset();
  });
  // The others dropped theirs before they went on.
  if (was_absent) run.optimizers.for_each([](OptimizerRecord& record) { zero_grad(record); });
  const at::Tensor all = run.group->gather(at::tensor({run.updates}, at::kLong));
  const std::int64_t most = all.max().item<std::int64_t>();
  if (all.eq(most).all().item<bool>()) return;
  const auto* updates = all.const_data_ptr<std::int64_t>();
  run.adopt_state_of(static_cast<int>(std::find(updates, updates + all.numel(), most) - updates));
}

}  // namespace hasten::detail

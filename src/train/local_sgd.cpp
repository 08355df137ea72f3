#include <hasten/base/error.h>
#include <hasten/train/accelerator.h>
#include <hasten/train/local_sgd.h>

#include "train/run.h"

namespace hasten {

LocalSgd::LocalSgd(Accelerator& accelerator, const LocalSgdOptions& options,
                   std::vector<std::shared_ptr<detail::ModelRecord>> models)
    : run_(accelerator.run_),
      options_(options),
      models_(std::move(models)),
      exceptions_(std::uncaught_exceptions()) {
  require(options.steps >= 1, ErrorCode::kInvalidArgument, "LocalSgd", "steps is ", options.steps,
          ", but must be at least 1.");
  if (options_.enabled) detail::forbid_synchronizing(*run_, true);
}

LocalSgd::~LocalSgd() noexcept(false) {
  if (!options_.enabled) return;
  detail::forbid_synchronizing(*run_, false);
  if (steps_ > 0 && std::uncaught_exceptions() == exceptions_) average();
}

void LocalSgd::step() {
  if (!options_.enabled || !run_->accumulation.complete()) return;
  if (++steps_ >= options_.steps) average();
}

void LocalSgd::average() {
  for (const auto& model : models_) model->replica->average();
  precision::clear_cast_cache();
  steps_ = 0;
}

}  // namespace hasten

#include <csignal>

#include <ATen/ops/cat.h>

#include <hasten/base/error.h>
#include <hasten/base/log.h>
#include <hasten/train/accelerator.h>

#include "train/run.h"

namespace hasten {

Accelerator::Accelerator(AcceleratorOptions options)
    : run_(std::make_shared<detail::Run>(std::move(options))) {}
Accelerator::~Accelerator() = default;

bool Accelerator::sync_gradients() const {
  return run_->accumulation.complete();
}
precision::Autocast Accelerator::autocast() const {
  return {run_->device.type(), run_->precision};
}

void Accelerator::wait_for_everyone() const {
  run_->group->barrier();
}
bool Accelerator::is_main_process() const {
  return run_->is_main();
}
bool Accelerator::is_local_main_process() const {
  return run_->process.local_rank == 0;
}
bool Accelerator::is_last_process() const {
  return run_->process.rank == run_->process.world_size - 1;
}
std::int64_t Accelerator::local_process_index() const {
  return run_->process.local_rank;
}
std::int64_t Accelerator::process_index() const {
  return run_->process.rank;
}
std::int64_t Accelerator::num_processes() const {
  return run_->process.world_size;
}
at::Device Accelerator::device() const {
  return run_->device;
}
Precision Accelerator::mixed_precision() const {
  return run_->precision;
}
std::int64_t Accelerator::updates() const {
  return run_->updates;
}
bool Accelerator::interrupted() const {
  return run_->stopping;
}
comm::Group& Accelerator::group() const {
  return *run_->group;
}

at::Tensor Accelerator::gather_rows(const at::Tensor& tensor) const {
  const data::LoaderBase* loader = run_->current_loader();
  const bool last = loader != nullptr && loader->is_last_batch();
  // Without even batches the ranks' last ones may differ in size.
  const bool may_differ = last && !loader->options().even_batches && tensor.dim() > 0;
  at::Tensor all = may_differ ? at::cat(run_->group->gather_varied(tensor)) : run_->group->gather(tensor);
  if (last && all.dim() > 0 && all.size(0) > loader->remainder()) all = all.narrow(0, 0, loader->remainder());
  return all;
}

void Accelerator::init_trackers(const std::string& name, const track::Config& config) {
  run_->observation->init_trackers(name, config);
}

void Accelerator::log(std::initializer_list<std::pair<const char*, LogValue>> values) {
  run_->observation->log(values);
}

void Accelerator::log(std::initializer_list<std::pair<const char*, LogValue>> values, std::int64_t step) {
  run_->observation->log_now(values, step);
}

void Accelerator::print_line(const std::string& line) const {
  run_->observation->print(line);
}

void Accelerator::end_training() {
  detail::Run& run = *run_;
  run.accumulation.abandon();
  run.loss_watch.look(run.process.rank);
  if (run.options.project.checkpoint_every > 0 && run.updates != run.saved_updates) run.save({});
  run.observation->finish();
  if (!run.stopping) {
    run.mark_finished();
    run.interrupts.reset();
    return;
  }
  if (run.is_main())
    log::info(run.last_checkpoint.empty()
                  ? std::string("stopped by a signal; nothing was saved, since project.dir is not set")
                  : concat("stopped by a signal; the state after ", run.updates, " updates is in '",
                           run.last_checkpoint.string(), "'"));
  run.interrupts.reset();
  std::fflush(nullptr);
  // The signal was held back so that the step could end; now it has the effect it was sent for.
  std::signal(run.stop_signal, SIG_DFL);
  std::raise(run.stop_signal);
}

}  // namespace hasten

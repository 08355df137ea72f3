#include <exception>
#include <mutex>
#include <string_view>
#include <unordered_map>

#include <torch/nn/module.h>

#include <hasten/base/error.h>
#include <hasten/device/device.h>
#include <hasten/precision/fp32.h>

#include "train/run.h"

/// How things come under a run, and which run holds what.
namespace hasten::detail {
namespace {

/// Which run holds a thing. One table for the process, since the point is to notice two runs at one thing.
class Holders {
 public:
  void take(const void* thing, const Run& run, std::string_view kind) {
    const std::lock_guard lock(mutex_);
    const auto [entry, is_new] = holders_.try_emplace(thing, &run);
    require(is_new || entry->second == &run, ErrorCode::kInvalidArgument, "prepare", "this ", kind,
            " is held by another Accelerator already. Use one Accelerator for it, or drop the other's handle "
            "first.");
  }
  void release(const void* thing) {
    const std::lock_guard lock(mutex_);
    holders_.erase(thing);
  }

 private:
  std::mutex mutex_;
  std::unordered_map<const void*, const Run*> holders_;
};

// Never destroyed: handles may be static.
Holders& holders() {
  static auto* instance = new Holders;
  return *instance;
}

/// The modules with parameters that are named in `keep_fp32` must be those of some model.
void require_known_modules(const Run& run) {
  for (const std::string& module : run.options.keep_fp32) {
    std::string known;
    bool found = false;
    run.models.for_each([&](const ModelRecord& model) {
      for (const params::Unit& unit : model.parameters.units()) {
        found = found || params::is_below(unit.path, module);
        known += concat(known.empty() ? "'" : ", '", unit.path, "'");
      }
    });
    require(found, ErrorCode::kNotFound, "prepare", "keep_fp32 names the module '", module,
            "', but no prepared model has parameters below that path. The modules with parameters are ",
            known, ".");
  }
}

void require_trainable_precision(const Run& run, const params::ParameterSet& parameters) {
  if (!run.scaler) return;
  for (const auto& parameter : parameters.parameters())
    require(parameter.tensor.scalar_type() != at::kHalf || !parameter.tensor.requires_grad(),
            ErrorCode::kInvalidArgument, "prepare", "parameter '", parameter.name,
            "' is fp16 itself, and fp16 gradients cannot be divided by a loss scale without losing what it "
            "saves. Build the model in fp32: mixed precision converts where that is safe.");
}

bool wants_channels_last(const Run& run, const params::ParameterSet& parameters) {
  switch (run.options.memory_format) {
    case MemoryFormat::kAsBuilt:
      return false;
    case MemoryFormat::kChannelsLast:
      return true;
    case MemoryFormat::kAuto:
      return parameters.has_convolutions();
  }
  return false;
}

}  // namespace

Hold::Hold(const void* thing, const Run& run, std::string_view kind) : thing_(thing) {
  holders().take(thing, run, kind);
}

Hold::~Hold() {
  holders().release(thing_);
}

ModelRecord::ModelRecord(std::shared_ptr<Run> owner, std::shared_ptr<torch::nn::Module> shared)
    : run(std::move(owner)),
      module(std::move(shared)),
      hold(module.get(), *run, "model"),
      parameters(params::from_module(*module)) {
  parameters.move_to(run->device);
  if (wants_channels_last(*run, parameters)) {
    parameters.set_channels_last(true);
    layout_on_trial = run->options.memory_format == MemoryFormat::kAuto;
  }
  require_trainable_precision(*run, parameters);
  keep_fp32();
  replica = run->strategy->attach(parameters);
}

void ModelRecord::keep_fp32() {
  if (run->precision != Precision::kNo) keeps_fp32 = precision::keep_fp32(parameters, run->options.keep_fp32);
}

OptimizerRecord::OptimizerRecord(std::shared_ptr<Run> owner, torch::optim::Optimizer& borrowed)
    : run(std::move(owner)),
      optimizer(&borrowed),
      hold(optimizer, *run, "optimizer"),
      stepper(optim::Stepper::make(borrowed, run->options.fp32_master_weights)) {
  run->strategy->attach(borrowed);
}

std::vector<at::Tensor> OptimizerRecord::parameters() const {
  std::vector<at::Tensor> all;
  for (const auto& group : optimizer->param_groups())
    all.insert(all.end(), group.params().begin(), group.params().end());
  return all;
}

SchedulerRecord::SchedulerRecord(std::shared_ptr<Run> owner, torch::optim::LRScheduler& borrowed)
    : run(std::move(owner)), scheduler(&borrowed), hold(scheduler, *run, "scheduler") {}

PlateauRecord::PlateauRecord(std::shared_ptr<Run> owner, optim::ReduceOnPlateau& borrowed)
    : run(std::move(owner)), plateau(&borrowed), hold(plateau, *run, "schedule") {}

LoaderRecord::LoaderRecord(std::shared_ptr<Run> owner, data::LoaderBase& borrowed)
    : run(std::move(owner)), loader(&borrowed), anchor(borrowed.anchor()), hold(loader, *run, "loader") {
  loader->shard(run->process.rank, run->process.world_size);
  loader->place(run->device);
  // Not owned by the loader, or the run would live as long as it.
  loader->observe(std::shared_ptr<data::LoaderObserver>(std::shared_ptr<void>(), this));
}

LoaderRecord::~LoaderRecord() {
  std::erase(run->running_loaders, loader);
  if (*anchor != nullptr) (*anchor)->observe(nullptr);
}

namespace {

/// The record of a thing, made at the first time.
template <class Record, class Thing, class Same>
std::shared_ptr<Record> find_or_make(Run& run, Records<Record>& records, Thing&& thing, Same&& same) {
  if (auto known = records.find(same)) return known;
  auto record = std::make_shared<Record>(run.shared_from_this(), std::forward<Thing>(thing));
  records.add(record);
  return record;
}

}  // namespace

std::shared_ptr<ModelRecord> attach(Run& run, std::shared_ptr<torch::nn::Module> module) {
  require(module != nullptr, ErrorCode::kInvalidArgument, "prepare", "a model is null. Construct it first.");
  auto record =
      find_or_make(run, run.models, module, [&](const ModelRecord& r) { return r.module == module; });
  run.has_models = true;
  return record;
}

std::shared_ptr<OptimizerRecord> attach(Run& run, torch::optim::Optimizer& optimizer) {
  return find_or_make(run, run.optimizers, optimizer,
                      [&](const OptimizerRecord& r) { return r.optimizer == &optimizer; });
}

std::shared_ptr<SchedulerRecord> attach(Run& run, torch::optim::LRScheduler& scheduler) {
  return find_or_make(run, run.schedulers, scheduler,
                      [&](const SchedulerRecord& r) { return r.scheduler == &scheduler; });
}

std::shared_ptr<PlateauRecord> attach(Run& run, optim::ReduceOnPlateau& plateau) {
  return find_or_make(run, run.plateaus, plateau,
                      [&](const PlateauRecord& r) { return r.plateau == &plateau; });
}

std::shared_ptr<LoaderRecord> attach(Run& run, data::LoaderBase& loader) {
  return find_or_make(run, run.loaders, loader, [&](const LoaderRecord& r) { return r.loader == &loader; });
}

void finish_attaching(Run& run) {
  if (!run.has_models) return;
  require_known_modules(run);
  run.optimizers.for_each([&](const OptimizerRecord& record) {
    std::size_t number = 0;
    for (const at::Tensor& parameter : record.parameters()) {
      const bool known = run.models.find([&](const ModelRecord& model) {
        return model.parameters.find(parameter) != nullptr;
      }) != nullptr;
      require(known, ErrorCode::kInvalidArgument, "prepare", "parameter ", number,
              " of an optimizer, of shape ", parameter.sizes(),
              ", belongs to no prepared model. Make the optimizer from the parameters of the model that is "
              "prepared, and prepare that model with it or before it.");
      ++number;
    }
  });
}

std::vector<at::Tensor> parameters_of(const ModelRecord& record) {
  return record.parameters.trainable();
}

bool layout_is_on_trial(const ModelRecord& record) noexcept {
  return record.layout_on_trial;
}

LayoutTrial::LayoutTrial(ModelRecord& record) : record_(record), exceptions_(std::uncaught_exceptions()) {
  for (const auto& [name, buffer] : record.parameters.buffers())
    record.buffers_before_trial.emplace_back(name, buffer.defined() ? buffer.detach().clone() : buffer);
  record.random_state_before_trial = device::random_state(record.run->device);
}

LayoutTrial::~LayoutTrial() {
  if (std::uncaught_exceptions() > exceptions_) return;
  record_.layout_on_trial = false;
  record_.buffers_before_trial.clear();
}

bool give_up_layout(ModelRecord& record, const std::exception& error) {
  if (std::string_view(error.what()).find("view size is not compatible") == std::string_view::npos) {
    record.buffers_before_trial.clear();
    return false;
  }
  record.layout_on_trial = false;
  record.parameters.set_channels_last(false);
  record.keep_fp32();
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < record.buffers_before_trial.size(); ++i)
    if (const at::Tensor& before = record.buffers_before_trial[i].second; before.defined())
      record.parameters.buffers()[i].second.copy_(before);
  record.buffers_before_trial.clear();
  device::set_random_state(record.run->device, record.random_state_before_trial);
  return true;
}

ForwardScope::ForwardScope(ModelRecord& record)
    : precision_(record.run->precision),
      autocast_(record.run->device.type(), precision_),
      fp32_(record.keeps_fp32.get()),
      strategy_(record.replica->operator_hook()) {
  record.replica->before_forward();
}

}  // namespace hasten::detail

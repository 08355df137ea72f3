#include <cstring>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include <ATen/ops/empty.h>

#include <hasten/base/error.h>
#include <hasten/base/files.h>
#include <hasten/base/log.h>
#include <hasten/checkpoint/tensors.h>
#include <hasten/device/device.h>
#include <hasten/optim/scheduler_state.h>
#include <hasten/optim/state.h>

#include "train/run.h"

/// What a checkpoint of a run holds:
///   model.safetensors, model_1.safetensors, ...      parameters and buffers under Python's names
///   optimizer.safetensors, optimizer_1.safetensors   state tensors as PARAMETER/STATE: "fc.weight/exp_avg"
///   random_RANK.safetensors                          each rank's own: random generators, compression
///   registered_0, registered_1, ...                  bytes of objects of the program
///   state.json                                       all else: counters, learning rates, schedules, loaders
namespace hasten {
namespace detail {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kStateFile = "state.json";
constexpr const char* kRunFile = "run.json";
// Neither a parameter's name nor a state's holds this.
constexpr char kSeparator = '/';
// The fp32 copy of a parameter in half precision, among the state that the optimizer keeps for it.
constexpr const char* kMasterWeight = "master_weight";
// Before the names of what the strategy keeps for one rank.
constexpr const char* kStrategyPrefix = "strategy/";
// State of an optimizer class that is not LibTorch's, as bytes.
constexpr const char* kOpaque = "opaque";

std::string numbered(const std::string& stem, std::size_t index) {
  return stem + (index == 0 ? "" : "_" + std::to_string(index)) + ".safetensors";
}

std::string registered_file(std::size_t index) {
  return "registered_" + std::to_string(index);
}

std::string random_file(int rank) {
  return "random_" + std::to_string(rank) + ".safetensors";
}

/// Names parameters for an optimizer's state: by the model's names, with the model's number before those of
/// the second model and later, and by position for parameters of no model.
optim::Names names_of_parameters(const Run& run) {
  auto names = std::make_shared<std::unordered_map<const at::TensorImpl*, std::string>>();
  std::size_t index = 0;
  run.models.for_each([&](const ModelRecord& model) {
    const std::string prefix = index == 0 ? "" : concat("model_", index, ":");
    for (const auto& parameter : model.parameters.parameters())
      names->emplace(parameter.tensor.unsafeGetTensorImpl(), prefix + parameter.name);
    ++index;
  });
  std::size_t position = 0;
  run.optimizers.for_each([&](const OptimizerRecord& record) {
    for (const at::Tensor& parameter : record.parameters())
      names->emplace(parameter.unsafeGetTensorImpl(), concat("parameter_", position++));
  });
  return [names](const at::Tensor& tensor) { return names->at(tensor.unsafeGetTensorImpl()); };
}

at::Tensor bytes_tensor(const std::string& bytes) {
  at::Tensor tensor = at::empty({static_cast<std::int64_t>(bytes.size())}, at::kByte);
  std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

// ---- optimizer state as JSON and tensors ----

json to_json(const optim::Scalar& scalar) {
  return std::visit([](const auto& value) { return json(value); }, scalar);
}

optim::Scalar scalar_from(const json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (value.is_number()) return value.get<double>();
  return value.get<std::string>();
}

json to_json(const optim::OptimizerState& state) {
  json groups = json::array();
  for (const auto& group : state.groups) {
    json options = json::object();
    for (const auto& [key, value] : group.options) options[key] = to_json(value);
    groups.push_back({{"parameters", group.parameters}, {"options", options}});
  }
  json scalars = json::object();
  for (const auto& [name, parameter] : state.parameters)
    for (const auto& [key, value] : parameter.scalars) scalars[name][key] = to_json(value);
  return {{"kind", state.kind}, {"groups", groups}, {"scalars", scalars}};
}

params::NamedTensors tensors_of(const optim::OptimizerState& state) {
  params::NamedTensors tensors;
  for (const auto& [name, parameter] : state.parameters)
    for (const auto& [key, tensor] : parameter.tensors) tensors.emplace_back(name + kSeparator + key, tensor);
  if (!state.opaque.empty()) tensors.emplace_back(kOpaque, bytes_tensor(state.opaque));
  return tensors;
}

optim::OptimizerState state_of(const OptimizerRecord& record, const optim::Names& names) {
  optim::OptimizerState state = optim::get_state(*record.optimizer, names);
  for (const auto& [parameter, weight] : record.stepper->master_weights())
    state.parameters[names(parameter)].tensors[kMasterWeight] = weight;
  return state;
}

void set_state(const OptimizerRecord& record, const optim::Names& names, optim::OptimizerState state) {
  std::map<std::string, at::Tensor> weights;
  for (auto& [name, saved] : state.parameters)
    if (auto weight = saved.tensors.extract(kMasterWeight)) weights.emplace(name, weight.mapped());
  std::erase_if(state.parameters, [](const auto& named) {
    return named.second.tensors.empty() && named.second.scalars.empty();
  });
  optim::set_state(*record.optimizer, names, state);
  for (const at::Tensor& parameter : record.parameters())
    if (const auto weight = weights.find(names(parameter)); weight != weights.end())
      record.stepper->set_master_weight(parameter, weight->second);
}

optim::OptimizerState optimizer_state_from(const json& saved, const params::NamedTensors& tensors) {
  optim::OptimizerState state;
  state.kind = saved.at("kind");
  for (const json& group : saved.at("groups")) {
    optim::GroupState& added = state.groups.emplace_back();
    added.parameters = group.at("parameters").get<std::vector<std::string>>();
    for (const auto& [key, value] : group.at("options").items()) added.options[key] = scalar_from(value);
  }
  for (const auto& [name, scalars] : saved.at("scalars").items())
    for (const auto& [key, value] : scalars.items()) state.parameters[name].scalars[key] = scalar_from(value);
  for (const auto& [name, tensor] : tensors) {
    if (name == kOpaque) {
      state.opaque.assign(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
      continue;
    }
    const auto separator = name.rfind(kSeparator);
    require(separator != std::string::npos, ErrorCode::kCorruptData, "load_state", "the optimizer's tensor '",
            name, "' is not named PARAMETER", kSeparator, "STATE.");
    state.parameters[name.substr(0, separator)].tensors[name.substr(separator + 1)] = tensor;
  }
  return state;
}

// ---- the rest as JSON ----

json to_json(const data::LoaderState& state) {
  return {{"size", state.size},
          {"shuffle", state.shuffle},
          {"seed", state.seed},
          {"epoch", state.epoch},
          {"consumed", state.consumed}};
}

data::LoaderState loader_state_from(const json& saved) {
  return {.size = saved.at("size"),
          .shuffle = saved.at("shuffle"),
          .seed = saved.at("seed"),
          .epoch = saved.at("epoch"),
          .consumed = saved.at("consumed")};
}

json state_of(const Run& run, const std::vector<optim::OptimizerState>& optimizer_states) {
  json state{{"updates", run.updates},
             {"epoch", run.epoch},
             {"precision", std::string(name(run.precision))},
             {"gradient_accumulation_steps", run.accumulation.steps()},
             {"processes", run.process.world_size},
             {"models", run.models.living().size()},
             {"registered", run.registered.size()},
             {"optimizers", json::array()},
             {"schedulers", json::array()},
             {"plateaus", json::array()},
             {"loaders", json::array()}};
  if (run.scaler) {
    const auto scaler = run.scaler->state();
    state["scaler"] = {{"scale", scaler.scale}, {"growth_tracker", scaler.growth_tracker}};
  }
  std::size_t index = 0;
  run.optimizers.for_each([&](const OptimizerRecord& record) {
    json saved = to_json(optimizer_states.at(index++));
    saved["updates"] = record.updates;
    state["optimizers"].push_back(std::move(saved));
  });
  run.schedulers.for_each([&](const SchedulerRecord& record) {
    const optim::SchedulerState scheduler = optim::get_state(*record.scheduler);
    state["schedulers"].push_back({{"step", scheduler.step}, {"base_lrs", scheduler.base_learning_rates}});
  });
  run.plateaus.for_each([&](const PlateauRecord& record) {
    const optim::PlateauState& plateau = record.plateau->state();
    state["plateaus"].push_back({{"best", plateau.best ? json(*plateau.best) : json()},
                                 {"failures", plateau.failures},
                                 {"cooldown_left", plateau.cooldown_left}});
  });
  run.loaders.for_each([&](const LoaderRecord& record) {
    json saved = to_json(record.loader->state());
    // An evaluation whose epoch is resumed is done again; training passes are not.
    saved["passes"] = record.trains && run.epoch_count ? record.passes_in_epoch : 0;
    state["loaders"].push_back(std::move(saved));
  });
  return state;
}

void restore_optimizer(OptimizerRecord& record, const optim::Names& names, const json& saved,
                       const params::NamedTensors& tensors) {
  set_state(record, names, optimizer_state_from(saved, tensors));
  record.updates = saved.at("updates");
}

/// Schedules and the scaler, of which there must be as many as were saved.
void restore_schedules(Run& run, const json& state) {
  std::size_t index = 0;
  run.schedulers.for_each([&](const SchedulerRecord& record) {
    const json& saved = state.at("schedulers").at(index++);
    optim::set_state(*record.scheduler,
                     {.step = saved.at("step"), .base_learning_rates = saved.at("base_lrs")});
  });
  index = 0;
  run.plateaus.for_each([&](const PlateauRecord& record) {
    const json& saved = state.at("plateaus").at(index++);
    const json& best = saved.at("best");
    record.plateau->load_state({.best = best.is_null() ? std::nullopt : std::optional(best.get<double>()),
                                .failures = saved.at("failures"),
                                .cooldown_left = saved.at("cooldown_left")});
  });
  if (run.scaler && state.contains("scaler"))
    run.scaler->load_state(
        {.scale = state["scaler"].at("scale"), .growth_tracker = state["scaler"].at("growth_tracker")});
}

/// The named tensors of a rank, on all ranks.
params::NamedTensors broadcast(comm::Group& group, const params::NamedTensors& mine, int root) {
  json layout = json::array();
  for (const auto& [name, tensor] : mine)
    layout.push_back({name, static_cast<int>(tensor.scalar_type()), tensor.sizes().vec(), tensor.is_cpu()});
  layout = json::parse(group.broadcast_bytes(layout.dump(), root));
  params::NamedTensors all;
  for (std::size_t i = 0; i < layout.size(); ++i) {
    const json& one = layout[i];
    const at::Device device = one.at(3).get<bool>() ? at::Device(at::kCPU) : group.device();
    const auto options = at::TensorOptions(device).dtype(static_cast<at::ScalarType>(one.at(1).get<int>()));
    at::Tensor tensor = group.rank() == root ? mine[i].second.detach().contiguous()
                                             : at::empty(one.at(2).get<std::vector<std::int64_t>>(), options);
    group.broadcast_(tensor, root);
    all.emplace_back(one.at(0), tensor);
  }
  return all;
}

params::NamedTensors random_states(const Run& run) {
  params::NamedTensors states{{"cpu", device::random_state(at::kCPU)}};
  if (!run.device.is_cpu()) states.emplace_back("device", device::random_state(run.device));
  return states;
}

/// What belongs to this rank alone.
params::NamedTensors rank_states(const Run& run) {
  params::NamedTensors states = random_states(run);
  for (auto& [name, tensor] : run.strategy->rank_state())
    states.emplace_back(kStrategyPrefix + name, std::move(tensor));
  return states;
}

void restore_rank_states(Run& run, const checkpoint::Reader& reader) {
  params::NamedTensors of_strategy;
  for (const auto& [where, state] : checkpoint::read_tensors(reader.path(random_file(run.process.rank))))
    if (where.starts_with(kStrategyPrefix)) {
      of_strategy.emplace_back(where.substr(std::strlen(kStrategyPrefix)), state);
    } else if (where == "cpu" || !run.device.is_cpu()) {
      device::set_random_state(where == "cpu" ? at::Device(at::kCPU) : run.device, state);
    }
  run.strategy->load_rank_state(of_strategy);
}

/// The counts of prepared things must be those that were saved: things are matched by their order.
void require_as_many(std::size_t saved, std::size_t prepared, std::string_view kind, const fs::path& folder) {
  require(saved == prepared, ErrorCode::kMismatch, "load_state", "'", folder.string(), "' holds ", saved, " ",
          kind, ", but ", prepared,
          " are prepared. Prepare the same things, in the same order, as the run that saved it.");
}

}  // namespace

fs::path Run::save(const fs::path& given) {
  require(accumulation.between_windows(), ErrorCode::kFailedPrecondition, "save_state",
          "an accumulation window is open, and its gradients are not part of a checkpoint. Save between "
          "windows.");
  require(!given.empty() || !options.project.dir.empty(), ErrorCode::kFailedPrecondition, "save_state",
          "there is no folder to save to. Name one, or set project.dir.");
  fs::path folder = given;
  if (folder.empty())
    folder = group->broadcast_bytes(is_main() ? checkpoint::next_folder(checkpoints()).string() : "", 0);

  for (const auto& hook : before_save) hook(folder);
  checkpoint::Writer writer(*group, folder);
  if (is_main()) {
    const optim::Names names = names_of_parameters(*this);
    std::size_t index = 0;
    models.for_each([&](const ModelRecord& record) {
      writer.write(numbered("model", index++),
                   [&](const fs::path& path) { checkpoint::write_model(path, record.parameters); });
    });
    std::vector<optim::OptimizerState> optimizer_states;
    optimizers.for_each(
        [&](const OptimizerRecord& record) { optimizer_states.push_back(state_of(record, names)); });
    for (std::size_t i = 0; i < optimizer_states.size(); ++i)
      writer.write(numbered("optimizer", i), [&](const fs::path& path) {
        checkpoint::write_tensors(path, tensors_of(optimizer_states[i]));
      });
    for (std::size_t i = 0; i < registered.size(); ++i)
      writer.write(registered_file(i),
                   [&](const fs::path& path) { files::write_atomically(path, registered[i].save()); });
    writer.write(kStateFile, [&](const fs::path& path) {
      files::write_atomically(path, state_of(*this, optimizer_states).dump(2) + "\n");
    });
  }
  writer.write(random_file(process.rank),
               [&](const fs::path& path) { checkpoint::write_tensors(path, rank_states(*this)); });
  writer.commit();
  saved_updates = updates;
  if (given.empty()) {
    last_checkpoint = folder;
    if (is_main() && options.project.total_limit)
      checkpoint::keep_newest(checkpoints(), *options.project.total_limit);
  }
  return folder;
}

void Run::load(const fs::path& folder) {
  for (const auto& hook : before_load) hook(folder);
  const checkpoint::Reader reader(folder, checkpoint::Check::kSizes);
  json state;
  try {
    state = json::parse(files::read(reader.path(kStateFile)));
    const auto model_records = models.living();
    const auto optimizer_records = optimizers.living();
    const auto scheduler_records = schedulers.living();
    const auto plateau_records = plateaus.living();
    const auto loader_records = loaders.living();
    require_as_many(state.at("models").get<std::size_t>(), model_records.size(), "models", folder);
    require_as_many(state.at("registered").get<std::size_t>(), registered.size(), "registered objects",
                    folder);
    require_as_many(state.at("optimizers").size(), optimizer_records.size(), "optimizers", folder);
    require_as_many(state.at("schedulers").size(), scheduler_records.size(), "schedulers", folder);
    require_as_many(state.at("plateaus").size(), plateau_records.size(), "plateau schedules", folder);
    require_as_many(state.at("loaders").size(), loader_records.size(), "loaders", folder);
    require(state.at("processes").get<int>() == process.world_size, ErrorCode::kMismatch, "load_state", "'",
            folder.string(), "' was saved by ", state.at("processes").get<int>(),
            " processes, but this run has ", process.world_size, ". Start as many.");

    for (std::size_t i = 0; i < model_records.size(); ++i)
      checkpoint::read_model(reader.path(numbered("model", i)), model_records[i]->parameters);
    const optim::Names names = names_of_parameters(*this);
    for (std::size_t i = 0; i < optimizer_records.size(); ++i) {
      const json& saved = state.at("optimizers")[i];
      restore_optimizer(*optimizer_records[i], names, saved,
                        checkpoint::read_tensors(reader.path(numbered("optimizer", i))));
    }
    restore_schedules(*this, state);
    for (std::size_t i = 0; i < registered.size(); ++i)
      registered[i].load(files::read(reader.path(registered_file(i))));
    for (std::size_t i = 0; i < loader_records.size(); ++i) {
      const json& saved = state.at("loaders")[i];
      loader_records[i]->loader->load_state(loader_state_from(saved));
      loader_records[i]->passes_to_skip = loader_records[i]->passes_in_epoch = saved.at("passes");
    }
    updates = state.at("updates");
    epoch = state.at("epoch");
  } catch (const json::exception& error) {
    fail(ErrorCode::kCorruptData, "load_state", "'", (folder / kStateFile).string(),
         "' is damaged: ", error.what(), ".");
  }
  restore_rank_states(*this, reader);
  saved_updates = seen_updates = updates;
  resumed_from = folder;
}

void Run::adopt_state_of(int rank) {
  models.for_each([&](const ModelRecord& record) { record.replica->copy_from(rank); });
  const optim::Names names = names_of_parameters(*this);
  std::vector<optim::OptimizerState> states;
  optimizers.for_each(
      [&](const OptimizerRecord& record) { states.push_back(detail::state_of(record, names)); });
  const json state = json::parse(group->broadcast_bytes(state_of(*this, states).dump(), rank));
  std::size_t index = 0;
  optimizers.for_each([&](OptimizerRecord& record) {
    const params::NamedTensors tensors = broadcast(*group, tensors_of(states[index]), rank);
    restore_optimizer(record, names, state.at("optimizers").at(index++), tensors);
  });
  restore_schedules(*this, state);
  updates = seen_updates = state.at("updates");
  // Weights of items begin anew, alike on all ranks.
  item_mean = ItemMean();
  accumulation.abandon();
  precision::clear_cast_cache();
}

std::optional<fs::path> Run::newest_checkpoint(std::int64_t after) const {
  std::string found;
  if (is_main())
    if (const auto reader = checkpoint::newest(checkpoints(), after)) found = reader->folder().string();
  found = group->broadcast_bytes(found, 0);
  return found.empty() ? std::nullopt : std::optional<fs::path>(found);
}

std::int64_t Run::finished_number() const {
  const fs::path path = options.project.dir / kRunFile;
  if (!fs::exists(path)) return -1;
  try {
    return json::parse(files::read(path)).at("finished_at_checkpoint").get<std::int64_t>();
  } catch (const json::exception& error) {
    fail(ErrorCode::kCorruptData, "load_state_if_any", "'", path.string(), "' is damaged: ", error.what(),
         ". Remove it to resume from the newest checkpoint.");
  }
}

bool Run::resume() {
  if (options.project.dir.empty()) return false;
  const auto newest = newest_checkpoint(is_main() ? finished_number() : -1);
  if (!newest) return false;
  load(*newest);
  if (is_main()) log::info(concat("resuming from '", newest->string(), "' after ", updates, " updates"));
  return true;
}

void Run::mark_finished() const {
  if (!is_main() || options.project.dir.empty()) return;
  const auto present = checkpoint::numbers(checkpoints());
  fs::create_directories(options.project.dir);
  const json record{{"finished_at_checkpoint", present.empty() ? -1 : present.back()}, {"updates", updates}};
  files::write_atomically(options.project.dir / kRunFile, record.dump(2) + "\n");
}

}  // namespace detail

void Accelerator::register_state(std::function<std::string()> save,
                                 std::function<void(std::string_view)> load) {
  run_->registered.push_back({std::move(save), std::move(load)});
}

void Accelerator::register_save_state_pre_hook(std::function<void(const std::filesystem::path&)> hook) {
  run_->before_save.push_back(std::move(hook));
}

void Accelerator::register_load_state_pre_hook(std::function<void(const std::filesystem::path&)> hook) {
  run_->before_load.push_back(std::move(hook));
}

std::filesystem::path Accelerator::save_state(const std::filesystem::path& folder) {
  return run_->save(folder);
}

void Accelerator::load_state(const std::filesystem::path& folder) {
  if (!folder.empty()) return run_->load(folder);
  require(!run_->options.project.dir.empty(), ErrorCode::kFailedPrecondition, "load_state",
          "there is no folder to load from. Name one, or set project.dir.");
  const auto newest = run_->newest_checkpoint(-1);
  require(newest.has_value(), ErrorCode::kNotFound, "load_state", "there is no good checkpoint in '",
          run_->checkpoints().string(), "'. Use load_state_if_any where starting afresh is right.");
  run_->load(*newest);
}

bool Accelerator::load_state_if_any() {
  return run_->resume();
}

void Accelerator::save_model(const detail::ModelRecord& record, const std::filesystem::path& folder) const {
  std::string problem;
  if (run_->is_main()) {
    try {
      std::filesystem::create_directories(folder);
      checkpoint::write_model(folder / "model.safetensors", record.parameters);
    } catch (const std::exception& error) {
      problem = error.what();
    }
  }
  problem = run_->group->broadcast_bytes(problem, 0);
  if (!problem.empty()) fail(ErrorCode::kSystem, "save_model", problem);
}

}  // namespace hasten

#include <algorithm>
#include <cstddef>
#include <sstream>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/serialize/archive.h>

#include <hasten/optim/state.h>

#include "optim/kind.h"
#include "optim/state_fields.h"
#include "optim/state_visitors.h"

namespace hasten::optim {

void StateWriter::write(const at::Tensor& value, at::Tensor& field) const {
  // State that a stepper keeps in fp32 for a parameter in half precision stays fp32.
  const bool wider = c10::isReducedFloatingType(parameter.scalar_type()) && value.scalar_type() == at::kFloat;
  const at::ScalarType type = wider ? at::kFloat : parameter.scalar_type();
  const bool fits = field.defined() && field.sizes() == value.sizes() &&
                    field.device() == parameter.device() && field.scalar_type() == type;
  if (!fits) {
    const at::TensorOptions options = parameter.options().dtype(type).requires_grad(false);
    field = value.sizes() == parameter.sizes() ? at::empty_like(parameter, options)
                                               : at::empty(value.sizes(), options);
  }
  field.copy_(value);
}

namespace {

/// The optimizer's parameters with their names, group by group.
struct Named {
  std::string name;
  at::Tensor tensor;
};
using NamedGroups = std::vector<std::vector<Named>>;

NamedGroups named_groups(torch::optim::Optimizer& optimizer, const Names& names, const char* operation) {
  NamedGroups groups;
  std::set<std::string> seen;
  for (const auto& group : optimizer.param_groups()) {
    auto& named = groups.emplace_back();
    for (const at::Tensor& parameter : group.params()) {
      named.push_back({names(parameter), parameter});
      require(seen.insert(named.back().name).second, ErrorCode::kInvalidArgument, operation,
              "two parameters of the optimizer have the name '", named.back().name,
              "'. Give each its own name.");
    }
  }
  return groups;
}

std::int64_t elements_of(const NamedGroups& groups) {
  std::int64_t elements = 0;
  for (const auto& group : groups)
    for (const Named& parameter : group) elements += parameter.tensor.numel();
  return elements;
}

/// The groups must hold the same names. Their order matters to LBFGS alone, which joins the parameters.
void check_names(const std::vector<Named>& group, std::vector<std::string> saved, std::size_t index,
                 bool ordered) {
  std::vector<std::string> present;
  for (const Named& parameter : group) present.push_back(parameter.name);
  if (!ordered) {
    std::sort(present.begin(), present.end());
    std::sort(saved.begin(), saved.end());
  }
  const auto missing_from = [](const auto& names, const auto& others) {
    return std::find_if(names.begin(), names.end(), [&](const std::string& name) {
      return std::find(others.begin(), others.end(), name) == others.end();
    });
  };
  if (const auto name = missing_from(present, saved); name != present.end())
    fail(ErrorCode::kMismatch, kSetState, "parameter '", *name, "' of group ", index,
         " is not in that group of the saved state. Make the optimizer with the groups that it had.");
  if (const auto name = missing_from(saved, present); name != saved.end())
    fail(ErrorCode::kMismatch, kSetState, "the saved state holds parameter '", *name, "' in group ", index,
         ", where this optimizer has none of that name. Make the optimizer with the groups that it had.");
  require(present == saved, ErrorCode::kMismatch, kSetState, "the parameters of group ", index,
          " are in another order than in the saved state. Give them to the optimizer in the order that they "
          "had.");
}

/// What is common to all optimizers: kind, groups and names.
void check_structure(torch::optim::Optimizer& optimizer, const NamedGroups& groups,
                     const OptimizerState& state, bool ordered) {
  const std::string kind = kind_of(optimizer);
  require(state.kind == kind, ErrorCode::kMismatch, kSetState, "the saved state is of ", state.kind,
          ", this optimizer is ", kind, ". Make the optimizer that was saved.");
  require(state.groups.size() == groups.size(), ErrorCode::kMismatch, kSetState, "the saved state has ",
          state.groups.size(), " groups, this optimizer ", groups.size(),
          ". Make the optimizer with the groups that it had.");
  for (std::size_t i = 0; i < groups.size(); ++i)
    check_names(groups[i], state.groups[i].parameters, i, ordered);
  std::set<std::string> names;
  for (const auto& group : groups)
    for (const Named& parameter : group) names.insert(parameter.name);
  for (const auto& [name, saved] : state.parameters)
    require(names.contains(name), ErrorCode::kMismatch, kSetState,
            "the saved state keeps values for parameter '", name,
            "', which is in no group. The saved state is damaged.");
}

template <class Family>
void read(torch::optim::Optimizer& optimizer, const NamedGroups& groups, OptimizerState& into) {
  using Options = typename Family::Options;
  using State = typename Family::State;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    fields::options(static_cast<Options&>(optimizer.param_groups()[i].options()),
                    ScalarReader{into.groups[i].options});
    for (const Named& parameter : groups[i]) {
      const auto found = optimizer.state().find(parameter.tensor.unsafeGetTensorImpl());
      if (found == optimizer.state().end()) continue;
      fields::state(static_cast<State&>(*found->second), StateReader{into.parameters[parameter.name]});
    }
  }
}

template <class Family>
void check(torch::optim::Optimizer& optimizer, const NamedGroups& groups, const OptimizerState& state) {
  using Options = typename Family::Options;
  using State = typename Family::State;
  check_structure(optimizer, groups, state, /*ordered=*/std::is_same_v<Options, torch::optim::LBFGSOptions>);
  const std::int64_t all = elements_of(groups);
  for (std::size_t i = 0; i < groups.size(); ++i) {
    ScalarChecker options{state.groups[i].options, concat("group ", i)};
    fields::options(static_cast<Options&>(optimizer.param_groups()[i].options()), options);
    options.finish();
    for (const Named& parameter : groups[i]) {
      const auto saved = state.parameters.find(parameter.name);
      if (saved == state.parameters.end()) continue;
      StateChecker checker(saved->second, parameter.name, parameter.tensor, all);
      State names_only;
      fields::state(names_only, checker);
      checker.finish();
    }
  }
}

template <class Family>
void write(torch::optim::Optimizer& optimizer, const NamedGroups& groups, const OptimizerState& state) {
  using Options = typename Family::Options;
  using State = typename Family::State;
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    fields::options(static_cast<Options&>(optimizer.param_groups()[i].options()),
                    ScalarWriter{state.groups[i].options});
    for (const Named& parameter : groups[i]) {
      void* const key = parameter.tensor.unsafeGetTensorImpl();
      const auto saved = state.parameters.find(parameter.name);
      if (saved == state.parameters.end()) {
        optimizer.state().erase(key);
        continue;
      }
      auto& slot = optimizer.state()[key];
      if (!slot) slot = std::make_unique<State>();
      fields::state(static_cast<State&>(*slot), StateWriter{saved->second, parameter.tensor});
    }
  }
}

// A class of the user's: its own archive, and beside it what the archive of LibTorch's base forgets.

std::string archive_of(const torch::optim::Optimizer& optimizer) {
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  std::ostringstream out;
  archive.save_to(out);
  return std::move(out).str();
}

torch::serialize::InputArchive open_archive(const std::string& bytes) {
  torch::serialize::InputArchive archive;
  archive.load_from(bytes.data(), bytes.size());
  return archive;
}

/// Unset where the options class has no learning rate.
std::optional<double> learning_rate(const torch::optim::OptimizerOptions& options) {
  try {
    return options.get_lr();
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

void read_opaque(torch::optim::Optimizer& optimizer, OptimizerState& into) {
  into.opaque = archive_of(optimizer);
  require(optimizer.state().empty() || !open_archive(into.opaque).keys().empty(), ErrorCode::kUnavailable,
          "optimizer.get_state", into.kind,
          " holds state, but its save() writes nothing. Override save() and load() in that class.");
  for (std::size_t i = 0; i < into.groups.size(); ++i)
    if (const auto rate = learning_rate(optimizer.param_groups()[i].options()))
      into.groups[i].options["lr"] = *rate;
}

void load_archive(torch::optim::Optimizer& optimizer, const std::string& bytes) {
  torch::serialize::InputArchive archive = open_archive(bytes);
  optimizer.load(archive);
}

void write_opaque(torch::optim::Optimizer& optimizer, const NamedGroups& groups,
                  const OptimizerState& state) {
  check_structure(optimizer, groups, state, /*ordered=*/true);
  for (std::size_t i = 0; i < groups.size(); ++i) {
    ScalarChecker options{state.groups[i].options, concat("group ", i)};
    options("lr", learning_rate(optimizer.param_groups()[i].options()));
    options.finish();
  }
  const std::string before = archive_of(optimizer);
  try {
    load_archive(optimizer, state.opaque);
  } catch (const std::exception& error) {
    load_archive(optimizer, before);
    fail(ErrorCode::kMismatch, kSetState, state.kind, " could not load its saved state: ", error.what(),
         ". Load a checkpoint of this class and model.");
  }
  for (std::size_t i = 0; i < groups.size(); ++i)
    if (const auto rate = state.groups[i].options.find("lr"); rate != state.groups[i].options.end())
      optimizer.param_groups()[i].options().set_lr(*as<double>(rate->second));
}

}  // namespace

OptimizerState get_state(torch::optim::Optimizer& optimizer, const Names& names) {
  const NamedGroups groups = named_groups(optimizer, names, "optimizer.get_state");
  OptimizerState state;
  state.kind = kind_of(optimizer);
  for (const auto& group : groups) {
    auto& saved = state.groups.emplace_back();
    for (const Named& parameter : group) saved.parameters.push_back(parameter.name);
  }
  if (!fields::with_family(optimizer, [&]<class Family>() { read<Family>(optimizer, groups, state); }))
    read_opaque(optimizer, state);
  return state;
}

void set_state(torch::optim::Optimizer& optimizer, const Names& names, const OptimizerState& state) {
  const NamedGroups groups = named_groups(optimizer, names, kSetState);
  if (!state.opaque.empty()) {
    write_opaque(optimizer, groups, state);
    return;
  }
  const bool known = fields::with_family(optimizer, [&]<class Family>() {
    check<Family>(optimizer, groups, state);
    write<Family>(optimizer, groups, state);
  });
  require(known, ErrorCode::kMismatch, kSetState, "the saved state of ", state.kind,
          " has no archive of that class. Load a checkpoint of this class.");
}

}  // namespace hasten::optim

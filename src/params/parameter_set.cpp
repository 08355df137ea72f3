#include <set>
#include <sstream>
#include <unordered_set>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include <hasten/base/error.h>
#include <hasten/device/device.h>
#include <hasten/params/parameter_set.h>

namespace hasten::params {
namespace {

std::string_view module_of(std::string_view name) {
  const auto dot = name.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : name.substr(0, dot);
}

// A depthwise convolution has one input channel a group and gains nothing; a 1x1 kernel has one layout only.
bool mixes_channels(const at::Tensor& weight) {
  return weight.dim() == 4 && weight.size(1) > 1;
}

/// "a, b, c and 4 more".
std::string list_some(const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 5;
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kMost); ++i) text += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > kMost) text += concat(" and ", names.size() - kMost, " more");
  return text.empty() ? "none" : text;
}

}  // namespace

ParameterSet::ParameterSet(const NamedTensors& parameters, NamedTensors buffers,
                           const std::set<std::string>& sparse)
    : buffers_(std::move(buffers)) {
  std::unordered_set<std::string_view> names;
  std::unordered_map<std::string_view, std::size_t> unit_of;
  const auto take_name = [&](const std::string& name) {
    require(names.insert(name).second, ErrorCode::kInvalidArgument, "ParameterSet", "the name '", name,
            "' is given twice. Names of parameters and buffers must be unique.");
  };
  for (const auto& [name, tensor] : parameters) {
    take_name(name);
    const auto [known, is_new] = index_.try_emplace(tensor.unsafeGetTensorImpl(), parameters_.size());
    if (!is_new) {
      Parameter& first = parameters_[known->second];
      aliases_.emplace_back(name, first.name);
      // Tied to a dense use, its gradient is the sum of both, which is dense.
      first.sparse_gradient = first.sparse_gradient && sparse.contains(name);
      continue;
    }
    const auto [unit, is_new_unit] = unit_of.try_emplace(module_of(name), units_.size());
    if (is_new_unit) units_.push_back({std::string(module_of(name)), {}});
    units_[unit->second].parameters.push_back(parameters_.size());
    parameters_.push_back({.name = name,
                           .tensor = tensor,
                           .shape = tensor.sizes().vec(),
                           .dtype = tensor.scalar_type(),
                           .unit = unit->second,
                           .sparse_gradient = sparse.contains(name)});
  }
  for (const auto& [name, tensor] : buffers_) take_name(name);
}

const Parameter* ParameterSet::find(const at::Tensor& tensor) const {
  const auto found = index_.find(tensor.unsafeGetTensorImpl());
  return found == index_.end() ? nullptr : &parameters_[found->second];
}

std::vector<at::Tensor> ParameterSet::trainable() const {
  std::vector<at::Tensor> tensors;
  for (const Parameter& parameter : parameters_)
    if (parameter.tensor.requires_grad()) tensors.push_back(parameter.tensor);
  return tensors;
}

NamedTensors ParameterSet::state() const {
  NamedTensors all;
  all.reserve(parameters_.size() + buffers_.size());
  for (const Parameter& parameter : parameters_) all.emplace_back(parameter.name, parameter.tensor.detach());
  for (const auto& [name, buffer] : buffers_)
    if (buffer.defined()) all.emplace_back(name, buffer.detach());
  return all;
}

void ParameterSet::load(const NamedTensors& values, std::string_view source) const {
  std::unordered_map<std::string_view, std::string_view> first_name(aliases_.begin(), aliases_.end());
  std::unordered_map<std::string_view, const at::Tensor*> targets;
  const NamedTensors own = state();
  for (const auto& [name, tensor] : own) targets.emplace(name, &tensor);

  std::vector<std::pair<const at::Tensor*, const at::Tensor*>> copies;
  std::set<std::string_view> filled;
  std::vector<std::string> unexpected;
  for (const auto& [name, value] : values) {
    const auto alias = first_name.find(name);
    const auto target = targets.find(alias == first_name.end() ? std::string_view(name) : alias->second);
    if (target == targets.end()) {
      unexpected.push_back(name);
      continue;
    }
    require(target->second->sizes() == value.sizes(), ErrorCode::kMismatch, "load", "'", name, "' has shape ",
            value.sizes(), " in ", source, ", but the model's has ", target->second->sizes(),
            ". Build the model with the sizes it was saved with.");
    filled.insert(target->first);
    copies.emplace_back(target->second, &value);
  }
  std::vector<std::string> missing;
  for (const auto& [name, tensor] : own)
    if (!filled.contains(name)) missing.push_back(name);
  require(missing.empty() && unexpected.empty(), ErrorCode::kMismatch, "load", source,
          " is of another model. Missing in it: ", list_some(missing),
          "; unknown to this model: ", list_some(unexpected),
          ". Load it into the model that it was saved from.");

  const at::NoGradGuard no_grad;
  for (const auto& [target, value] : copies) target->copy_(*value);
}

void ParameterSet::move_to(const at::Device& device) const {
  const auto move = [&](const at::Tensor& tensor) {
    if (tensor.defined() && tensor.device() != device)
      replace_contents(tensor, device::copy_to(tensor.detach(), device, /*non_blocking=*/false));
  };
  for (const Parameter& parameter : parameters_) {
    move(parameter.tensor);
    move(parameter.tensor.grad());
  }
  for (const auto& [name, buffer] : buffers_) move(buffer);
}

void ParameterSet::set_channels_last(bool on) const {
  const auto format = on ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
  for (const Parameter& parameter : parameters_)
    if (mixes_channels(parameter.tensor))
      replace_contents(parameter.tensor, parameter.tensor.detach().contiguous(format));
}

bool ParameterSet::has_convolutions() const {
  for (const Parameter& parameter : parameters_)
    if (mixes_channels(parameter.tensor)) return true;
  return false;
}

bool is_below(std::string_view path, std::string_view module) {
  return path == module || (path.starts_with(module) && path.substr(module.size()).starts_with('.'));
}

void replace_contents(const at::Tensor& tensor, const at::Tensor& contents) {
  tensor.set_data(contents);
}

void lend_contents(const at::Tensor& tensor, const at::Tensor& contents) {
  tensor.unsafeGetTensorImpl()->shallow_copy_from(contents.getIntrusivePtr());
}

}  // namespace hasten::params

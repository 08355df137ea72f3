#include <map>
#include <tuple>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_clamp_max.h>
#include <ATen/ops/_foreach_clamp_min.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/clamp_max.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <hasten/parallel/gradients.h>

namespace hasten::parallel {
namespace {

using Key = std::tuple<c10::DeviceType, c10::DeviceIndex, at::ScalarType>;

Key key_of(const at::Tensor& tensor) {
  return {tensor.device().type(), tensor.device().index(), tensor.scalar_type()};
}

/// Calls `act` on the gradients of each device and type: foreach operators take one of each. Most models have
/// just one group, which is passed on as it is.
template <class Act>
void for_each_group(const std::vector<at::Tensor>& gradients, Act&& act) {
  if (gradients.empty()) return;
  bool uniform = true;
  for (const at::Tensor& gradient : gradients)
    uniform = uniform && key_of(gradient) == key_of(gradients.front());
  if (uniform) return act(gradients);
  std::map<Key, std::vector<at::Tensor>> groups;
  for (const at::Tensor& gradient : gradients) groups[key_of(gradient)].push_back(gradient);
  for (const auto& [key, group] : groups) act(group);
}

}  // namespace

std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  gradients.reserve(parameters.size());
  for (const at::Tensor& parameter : parameters) {
    at::Tensor& gradient = parameter.mutable_grad();
    if (!gradient.defined()) continue;
    if (gradient.is_sparse()) {
      // The norm of a sparse gradient is that of its sums, so equal indices are added up first, for good.
      if (!gradient.is_coalesced()) gradient = gradient.coalesce();
      gradients.push_back(gradient._values());
    } else {
      gradients.push_back(gradient);
    }
  }
  return gradients;
}

at::Tensor norm(const std::vector<at::Tensor>& gradients, double norm_type) {
  const at::NoGradGuard no_grad;
  if (gradients.empty()) return at::zeros({});
  std::vector<at::Tensor> norms;
  at::ScalarType type = at::kFloat;
  for_each_group(gradients, [&](const std::vector<at::Tensor>& group) {
    // Half precision could hold neither the sum of many squares nor 8 bits of their root.
    const bool half = c10::isReducedFloatingType(group.front().scalar_type());
    for (at::Tensor& one :
         at::_foreach_norm(group, norm_type, half ? std::optional(at::kFloat) : std::nullopt)) {
      type = c10::promoteTypes(type, one.scalar_type());
      norms.push_back(std::move(one));
    }
  });
  const at::Device device = norms.front().device();
  for (at::Tensor& one : norms) one = one.to(device, type);
  return at::linalg_vector_norm(at::stack(norms), norm_type);
}

void clip_to_norm_(const std::vector<at::Tensor>& gradients, const at::Tensor& total_norm, double max_norm) {
  const at::NoGradGuard no_grad;
  const at::Tensor factor = at::clamp_max(max_norm / (total_norm + 1e-6), 1.0);
  for_each_group(gradients, [&](const std::vector<at::Tensor>& group) {
    at::_foreach_mul_(group, factor.to(group.front().device()));
  });
}

void clip_to_value_(const std::vector<at::Tensor>& gradients, double limit) {
  const at::NoGradGuard no_grad;
  for_each_group(gradients, [&](const std::vector<at::Tensor>& group) {
    at::_foreach_clamp_min_(group, -limit);
    at::_foreach_clamp_max_(group, limit);
  });
}

void multiply_(const std::vector<at::Tensor>& gradients, double factor) {
  const at::NoGradGuard no_grad;
  for_each_group(gradients, [&](const std::vector<at::Tensor>& group) { at::_foreach_mul_(group, factor); });
}

}  // namespace hasten::parallel

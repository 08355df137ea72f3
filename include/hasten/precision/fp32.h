#pragma once

#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <hasten/device/operator_hook.h>
#include <hasten/params/parameter_set.h>
#include <hasten/precision/autocast.h>
#include <hasten/tree/tree.h>

/// Parts of a model that stay in fp32 while the rest runs in mixed precision.
namespace hasten::precision {

/// While it lives, operators compute in the types of their inputs, whatever region of autocast is around.
/// Belongs to the thread that made it; ends when an exception passes, too.
class [[nodiscard]] AutocastOff {
 private:
  c10::impl::ExcludeDispatchKeyGuard guard_{c10::autocast_dispatch_keyset};
};

/// Calls a module (or its holder, or any function) on the arguments, those of them that are fp16 or bf16
/// tensors as fp32, with autocast switched off: `in_fp32(head_, x)` within a `forward`.
template <class Module, class... Arguments>
auto in_fp32(Module&& module, Arguments&&... arguments) {
  const auto raise = [](auto argument) {
    tree::for_each(argument, [](at::Tensor& tensor) { tensor = to_fp32(tensor); });
    return argument;
  };
  const AutocastOff off;
  if constexpr (requires { module->forward(raise(std::decay_t<Arguments>(arguments))...); }) {
    return module->forward(raise(std::decay_t<Arguments>(std::forward<Arguments>(arguments)))...);
  } else {
    return std::forward<Module>(module)(
        raise(std::decay_t<Arguments>(std::forward<Arguments>(arguments)))...);
  }
}

/// `f`, with fp16 and bf16 tensors in what it returns converted to fp32. A prepared model's call does so by
/// itself.
template <class F>
auto convert_outputs_to_fp32(F f) {
  return [f = std::move(f)]<class... Arguments>(Arguments&&... arguments) mutable {
    auto outputs = f(std::forward<Arguments>(arguments)...);
    tree::for_each(outputs, [](at::Tensor& tensor) { tensor = to_fp32(tensor); });
    return outputs;
  };
}

/// Makes every operator that is given a parameter of the modules named, or a view of one, compute in fp32:
/// autocast is off for it, and its other fp16 and bf16 inputs are converted. `modules` are paths as in
/// parameter names, "head" or "encoder.norm"; a path stands for all that is below it. What such a module
/// computes without its parameters keeps the precision around it. Parameters that were built in half
/// precision become fp32, in place. Null when none of the paths is the model's.
[[nodiscard]] std::unique_ptr<device::OperatorHook> keep_fp32(const params::ParameterSet& parameters,
                                                              const std::vector<std::string>& modules);

}  // namespace hasten::precision

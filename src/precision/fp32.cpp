#include <span>
#include <unordered_set>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <hasten/precision/fp32.h>

namespace hasten::precision {
namespace {

class KeepFp32 final : public device::OperatorHook {
 public:
  void add(const at::Tensor& parameter) { kept_.insert(parameter.storage().unsafeGetStorageImpl()); }

  bool call(const c10::OperatorHandle& op, std::vector<c10::IValue>& stack) override {
    const std::size_t count = op.schema().arguments().size();
    const std::span<c10::IValue> arguments(stack.data() + stack.size() - count, count);
    bool concerned = false;
    for (const c10::IValue& argument : arguments) concerned = concerned || is_kept(argument);
    if (!concerned) return false;
    // An operator that writes to its arguments is to write to those that it was given.
    if (!op.schema().is_mutable())
      for (c10::IValue& argument : arguments) raise(argument);
    device::call_without_autocast(op, stack);
    return true;
  }

 private:
  bool is_kept(const at::Tensor& tensor) const {
    return tensor.defined() && tensor.has_storage() &&
           kept_.contains(tensor.storage().unsafeGetStorageImpl());
  }

  bool is_kept(const c10::IValue& argument) const {
    if (argument.isTensor()) return is_kept(argument.toTensor());
    if (!argument.isTensorList()) return false;
    for (const at::Tensor& tensor : argument.toTensorVector())
      if (is_kept(tensor)) return true;
    return false;
  }

  static void raise(c10::IValue& argument) {
    if (argument.isTensor()) {
      argument = to_fp32(argument.toTensor());
    } else if (argument.isTensorList()) {
      std::vector<at::Tensor> tensors = argument.toTensorVector();
      for (at::Tensor& tensor : tensors) tensor = to_fp32(tensor);
      argument = std::move(tensors);
    }
  }

  // By their storage, since modules hand views to operators: `weight.t()`.
  std::unordered_set<const c10::StorageImpl*> kept_;
};

}  // namespace

std::unique_ptr<device::OperatorHook> keep_fp32(const params::ParameterSet& parameters,
                                                const std::vector<std::string>& modules) {
  std::unique_ptr<KeepFp32> hook;
  for (const std::string& module : modules)
    for (const params::Unit& unit : parameters.units()) {
      if (!params::is_below(unit.path, module)) continue;
      if (!hook) hook = std::make_unique<KeepFp32>();
      for (const std::size_t index : unit.parameters) {
        const at::Tensor& parameter = parameters.parameters()[index].tensor;
        params::replace_contents(parameter, to_fp32(parameter.detach()));
        hook->add(parameter);
      }
    }
  return hook;
}

}  // namespace hasten::precision

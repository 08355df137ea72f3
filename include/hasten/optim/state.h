#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::optim {
class Optimizer;
}

/// An optimizer's options and state under the names of its parameters, for checkpoints. LibTorch's own `save`
/// keys state by address and order, and its `load` restores neither learning rates nor any other option.
namespace hasten::optim {

using Scalar = std::variant<bool, std::int64_t, double, std::string>;

/// One group: the names of its parameters, in order, and its options as LibTorch spells them ("lr",
/// "weight_decay",
/// ...; Adam's betas are "beta1" and "beta2"). An option that is unset is absent.
struct GroupState {
  std::vector<std::string> parameters;
  std::map<std::string, Scalar> options;
};

/// What the optimizer keeps for one parameter, as LibTorch spells it: "exp_avg", "momentum_buffer"; "step".
/// LBFGS keeps all of its state with the first parameter, its histories as "old_dirs.0", "old_dirs.1", ...
struct ParameterState {
  std::map<std::string, at::Tensor> tensors;
  std::map<std::string, Scalar> scalars;
};

struct OptimizerState {
  std::string kind;  ///< the optimizer's class, as `Stepper::kind` gives it
  std::vector<GroupState> groups;
  std::map<std::string, ParameterState>
      parameters;  ///< by parameter name; without those that have no state yet
  /// For a class that is not LibTorch's: the archive that its `save` writes. Empty otherwise.
  std::string opaque;
};

/// The name of a parameter of the optimizer. It may throw for a tensor that has none.
using Names = std::function<std::string(const at::Tensor& parameter)>;

/// The optimizer's present state. The tensors are the optimizer's own: copy what must outlive the next step.
/// Throws `kInvalidArgument` when two parameters have one name, and `kUnavailable` for a class of the user's
/// that holds state but does not override `save`.
[[nodiscard]] OptimizerState get_state(torch::optim::Optimizer& optimizer, const Names& names);

/// Puts `state` into the optimizer: options, learning rates included, and the state of every parameter,
/// converted to the parameter's dtype and device (fp32 state of a parameter in half precision stays fp32).
/// Tensors are copied, into those that are there where they
/// fit. State of parameters that `state` does not mention is dropped. Checks first: kind, groups, names,
/// fields and shapes; throws `kMismatch`, naming the group or the parameter and what differs, and then
/// nothing was changed.
void set_state(torch::optim::Optimizer& optimizer, const Names& names, const OptimizerState& state);

}  // namespace hasten::optim

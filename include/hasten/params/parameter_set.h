#pragma once

#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::nn {
class Module;
}

namespace hasten::params {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// One trainable or frozen tensor of a model. The tensor's identity never changes while the model lives; its
/// contents may be replaced, through `replace_contents` alone.
struct Parameter {
  std::string name;                 ///< Python's name, as "layer1.0.conv1.weight"
  at::Tensor tensor;                ///< the model's own tensor
  std::vector<std::int64_t> shape;  ///< the whole parameter's shape, also when a rank holds a part of it
  at::ScalarType dtype;             ///< the type the model was built with
  std::size_t unit = 0;             ///< index in `ParameterSet::units`
  bool sparse_gradient = false;     ///< its gradient is a sparse tensor: an embedding made with `sparse`
};

/// A group of parameters that is moved as one: those that belong to one module.
struct Unit {
  std::string path;                     ///< the module's path, "layer1.0.conv1"; empty for the top module
  std::vector<std::size_t> parameters;  ///< indices in `ParameterSet::parameters`
};

/// The named tensors of a model: all that the rest of the library knows of it.
class ParameterSet {
 public:
  /// Names must be unique. A tensor that comes again under a second name is tied: it stays one parameter,
  /// known by the first name, and the second is recorded in `aliases`. Throws `kInvalidArgument` for a name
  /// given twice.
  /// `sparse` names the parameters whose gradients are sparse.
  ParameterSet(const NamedTensors& parameters, NamedTensors buffers,
               const std::set<std::string>& sparse = {});

  /// Every parameter once, in the order given.
  [[nodiscard]] const std::vector<Parameter>& parameters() const noexcept { return parameters_; }
  [[nodiscard]] const NamedTensors& buffers() const noexcept { return buffers_; }
  [[nodiscard]] const std::vector<Unit>& units() const noexcept { return units_; }
  /// Second name of a tied parameter -> first name.
  [[nodiscard]] const std::vector<std::pair<std::string, std::string>>& aliases() const noexcept {
    return aliases_;
  }

  /// The parameter that is this very tensor, or null.
  [[nodiscard]] const Parameter* find(const at::Tensor& tensor) const;

  /// The parameters that require a gradient, in order.
  [[nodiscard]] std::vector<at::Tensor> trainable() const;

  /// Parameters and buffers by name, tied ones under their first name: what a checkpoint holds.
  [[nodiscard]] NamedTensors state() const;

  /// Copies values into the parameters and buffers of the same names, in place. Values under an alias count
  /// for the first name. All is checked before anything is changed: throws `kMismatch` naming every missing
  /// and unexpected name, or the first tensor whose shape differs, with both shapes. `source` is named in the
  /// message.
  void load(const NamedTensors& values, std::string_view source) const;

  /// Moves parameters, gradients and buffers to a device, in place.
  void move_to(const at::Device& device) const;

  /// Stores 4-d weights of ordinary convolutions channels-last, or as they were built, in place.
  void set_channels_last(bool on) const;
  /// Whether the model has a convolution that runs faster on channels-last data: a 4-d weight that mixes
  /// channels.
  [[nodiscard]] bool has_convolutions() const;

 private:
  std::vector<Parameter> parameters_;
  NamedTensors buffers_;
  std::vector<Unit> units_;
  std::vector<std::pair<std::string, std::string>> aliases_;
  std::unordered_map<const at::TensorImpl*, std::size_t> index_;
};

/// Whether a module's path is that of `module` or of a part of it: "layer1.0" is below "layer1".
[[nodiscard]] bool is_below(std::string_view path, std::string_view module);

/// Gives a tensor other contents (another device, layout or type) while it stays the same tensor for everyone
/// that holds it.
void replace_contents(const at::Tensor& tensor, const at::Tensor& contents);

/// The same, unseen by autograd: hooks on the tensor's gradient stay where `replace_contents` drops them with
/// a change of type. To be undone before the next forward or backward pass.
void lend_contents(const at::Tensor& tensor, const at::Tensor& contents);

/// The parameters and buffers of a module and its submodules under Python's names.
[[nodiscard]] ParameterSet from_module(const torch::nn::Module& module);

}  // namespace hasten::params

#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <type_traits>

#include <ATen/core/Tensor.h>

#include <hasten/base/error.h>
#include <hasten/optim/state.h>

#include "optim/state_fields.h"

/// Visitors of `state_fields.h`: what is read into named state, checked against it, and written from it.
namespace hasten::optim {

inline constexpr const char* kSetState = "optimizer.set_state";

/// The number as `T`, unset when it holds something else. A whole number serves as a real one, since a text
/// format may have dropped the point.
template <class T>
[[nodiscard]] std::optional<T> as(const Scalar& scalar) {
  if (const T* value = std::get_if<T>(&scalar)) return *value;
  if constexpr (std::is_same_v<T, double>)
    if (const auto* whole = std::get_if<std::int64_t>(&scalar)) return static_cast<double>(*whole);
  return std::nullopt;
}

using Scalars = std::map<std::string, Scalar>;

struct ScalarReader {
  Scalars& into;

  template <class T>
  void operator()(const char* name, const T& field) {
    into[name] = Scalar(field);
  }
  template <class T>
  void operator()(const char* name, const std::optional<T>& field) {
    if (field) into[name] = Scalar(*field);
  }
};

struct ScalarChecker {
  const Scalars& saved;
  std::string owner;  ///< "group 1", "parameter 'fc.bias'"
  std::set<std::string> known = {};

  template <class T>
  void operator()(const char* name, const T&) {
    check<T>(name, /*required=*/true);
  }
  template <class T>
  void operator()(const char* name, const std::optional<T>&) {
    check<T>(name, /*required=*/false);
  }

  /// After the last field: nothing else may have been saved.
  void finish() const {
    for (const auto& [name, value] : saved)
      require(known.contains(name), ErrorCode::kMismatch, kSetState, "the saved state of ", owner, " holds '",
              name, "', which this optimizer does not know. It is of another version or damaged.");
  }

 private:
  template <class T>
  void check(const char* name, bool required) {
    known.insert(name);
    const auto found = saved.find(name);
    require(found != saved.end() || !required, ErrorCode::kMismatch, kSetState, "the saved state of ", owner,
            " lacks '", name, "'. It is of another version or damaged.");
    require(found == saved.end() || as<T>(found->second).has_value(), ErrorCode::kMismatch, kSetState, "'",
            name, "' in the saved state of ", owner,
            " is of another type than this optimizer's. It is damaged.");
  }
};

struct ScalarWriter {
  const Scalars& saved;

  template <class T>
  void operator()(const char* name, T& field) const {
    field = *as<T>(saved.at(name));
  }
  template <class T>
  void operator()(const char* name, std::optional<T>& field) const {
    const auto found = saved.find(name);
    field = found == saved.end() ? std::nullopt : as<T>(found->second);
  }
};

/// The key of one element of a list of tensors.
[[nodiscard]] inline std::string element(const char* name, std::size_t index) {
  return concat(name, ".", index);
}

struct StateReader {
  ParameterState& into;

  template <class T>
  void scalar(const char* name, const T& field) {
    ScalarReader{into.scalars}(name, field);
  }
  void tensor(const char* name, const at::Tensor& field, fields::Extent, fields::Need) {
    if (field.defined()) into.tensors[name] = field;
  }
  void list(const char* name, const std::deque<at::Tensor>& field, fields::Extent) {
    for (std::size_t i = 0; i < field.size(); ++i) into.tensors[element(name, i)] = field[i];
  }
};

struct StateChecker {
  StateChecker(const ParameterState& state, std::string parameter, const at::Tensor& tensor, std::int64_t all)
      : saved(state),
        name(std::move(parameter)),
        target(tensor),
        all_elements(all),
        scalars{state.scalars, "parameter '" + name + "'"} {}

  const ParameterState& saved;
  std::string name;
  const at::Tensor& target;
  std::int64_t all_elements;  ///< of all parameters together
  ScalarChecker scalars;
  std::set<std::string> known = {};

  template <class T>
  void scalar(const char* field_name, const T& field) {
    scalars(field_name, field);
  }

  void tensor(const char* field_name, const at::Tensor&, fields::Extent extent, fields::Need need) {
    require(check(field_name, extent) || need == fields::Need::kOptional, ErrorCode::kMismatch, kSetState,
            "the saved state of ", scalars.owner, " lacks '", field_name,
            "'. It is of another version or damaged.");
  }

  void list(const char* field_name, const std::deque<at::Tensor>&, fields::Extent extent) {
    for (std::size_t i = 0; check(element(field_name, i), extent); ++i) {
    }
  }

  /// After the last field: nothing else may have been saved.
  void finish() const {
    scalars.finish();
    for (const auto& [key, value] : saved.tensors)
      require(known.contains(key), ErrorCode::kMismatch, kSetState, "the saved state of ", scalars.owner,
              " holds '", key, "', which this optimizer does not know. It is of another version or damaged.");
  }

 private:
  /// Whether it was saved; throws when its shape is wrong.
  bool check(const std::string& key, fields::Extent extent) {
    const auto found = saved.tensors.find(key);
    if (found == saved.tensors.end()) return false;
    known.insert(key);
    require(found->second.defined(), ErrorCode::kMismatch, kSetState, "'", key, "' in the saved state of ",
            scalars.owner, " is an undefined tensor. It is damaged.");
    const at::Tensor& value = found->second;
    if (extent == fields::Extent::kParameter) {
      require(value.sizes() == target.sizes(), ErrorCode::kMismatch, kSetState, "parameter '", name,
              "' has shape ", target.sizes(), " but the saved ", key, " has ", value.sizes(),
              ". Load the checkpoint of a model with these shapes.");
    } else {
      const std::int64_t elements = extent == fields::Extent::kOne ? 1 : all_elements;
      require(value.numel() == elements, ErrorCode::kMismatch, kSetState, "parameter '", name, "' of shape ",
              target.sizes(), " needs a ", key, " of ", elements, " elements but the saved one has shape ",
              value.sizes(), ". Load the checkpoint of a model with these shapes.");
    }
    return true;
  }
};

struct StateWriter {
  const ParameterState& saved;
  const at::Tensor& parameter;

  template <class T>
  void scalar(const char* name, T& field) const {
    ScalarWriter{saved.scalars}(name, field);
  }

  void tensor(const char* name, at::Tensor& field, fields::Extent, fields::Need) const {
    const auto found = saved.tensors.find(name);
    if (found == saved.tensors.end())
      field.reset();
    else
      write(found->second, field);
  }

  void list(const char* name, std::deque<at::Tensor>& field, fields::Extent) const {
    std::size_t size = 0;
    while (saved.tensors.contains(element(name, size))) ++size;
    field.resize(size);
    for (std::size_t i = 0; i < size; ++i) write(saved.tensors.at(element(name, i)), field[i]);
  }

 private:
  /// Copies into the tensor that is there if it fits, so that loading again and again takes no memory.
  void write(const at::Tensor& value, at::Tensor& field) const;
};

}  // namespace hasten::optim

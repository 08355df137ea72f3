#include "optim/kind.h"

#include <string_view>
#include <typeinfo>

#include <c10/util/Type.h>
#include <torch/optim/optimizer.h>

namespace hasten::optim {

std::string kind_of(const torch::optim::Optimizer& optimizer) {
  constexpr std::string_view kPrefix = "torch::optim::";
  std::string name = c10::demangle(typeid(optimizer).name());
  if (name.starts_with(kPrefix)) name.erase(0, kPrefix.size());
  return name;
}

}  // namespace hasten::optim

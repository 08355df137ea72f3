#pragma once

#include <string>

namespace torch::optim {
class Optimizer;
}

namespace hasten::optim {

/// The name of the optimizer's dynamic type, without `torch::optim::`.
[[nodiscard]] std::string kind_of(const torch::optim::Optimizer& optimizer);

}  // namespace hasten::optim

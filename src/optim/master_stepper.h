#pragma once

#include <memory>

#include <hasten/optim/stepper.h>

namespace hasten::optim {

/// A stepper that gives `inner` fp32 copies of parameters in half precision; see `Stepper::make`.
[[nodiscard]] std::unique_ptr<Stepper> make_master_stepper(torch::optim::Optimizer& optimizer,
                                                           std::unique_ptr<Stepper> inner);

}  // namespace hasten::optim

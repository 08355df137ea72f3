#pragma once

#include <memory>

#include <hasten/device/device.h>

namespace hasten::device {

/// One maker a kind. A kind that this build leaves out is made by a stub that says why it cannot be used.
std::unique_ptr<Backend> make_cpu();
std::unique_ptr<Backend> make_cuda();

}  // namespace hasten::device

#include <array>
#include <memory>

#include <ATen/Context.h>

#include <hasten/base/error.h>
#include <hasten/device/device.h>

#include "device/backends.h"

namespace hasten::device {
namespace {

const std::array<std::unique_ptr<Backend>, 2>& owned() {
  static const std::array<std::unique_ptr<Backend>, 2> instances{make_cuda(), make_cpu()};
  return instances;
}

}  // namespace

const std::vector<const Backend*>& backends() {
  static const std::vector<const Backend*> all = [] {
    std::vector<const Backend*> pointers;
    for (const auto& backend : owned()) pointers.push_back(backend.get());
    return pointers;
  }();
  return all;
}

const Backend& backend(c10::DeviceType type) {
  for (const Backend* candidate : backends())
    if (candidate->type() == type) return *candidate;
  fail(ErrorCode::kUnavailable, "device::backend", "devices of kind '", c10::DeviceTypeName(type, true),
       "' are not supported. Use one of cpu, cuda.");
}

at::Device choose(bool cpu, int local_rank) {
  for (const Backend* candidate : backends()) {
    if (candidate->type() == c10::DeviceType::CPU) break;
    if (cpu || candidate->count() == 0) continue;
    require(local_rank < candidate->count(), ErrorCode::kUnavailable, "device::choose", "process ",
            local_rank, " of this host has no device: there are ", candidate->count(), " of kind ",
            candidate->name(), ". Start at most ", candidate->count(),
            " processes on this host, or ask for the CPU.");
    return {candidate->type(), static_cast<c10::DeviceIndex>(local_rank)};
  }
  return c10::DeviceType::CPU;
}

at::Tensor random_state(const at::Device& device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_random_state(const at::Device& device, const at::Tensor& state) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

void seed(std::uint64_t value) {
  at::manual_seed(value);
}

at::Tensor copy_to(const at::Tensor& tensor, const at::Device& device, bool non_blocking) {
  if (!tensor.defined() || tensor.device() == device) return tensor;
  return tensor.to(tensor.options().device(device), non_blocking);
}

}  // namespace hasten::device

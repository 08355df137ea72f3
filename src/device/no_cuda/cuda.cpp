#include <hasten/base/error.h>

#include "device/backends.h"

namespace hasten::device {
namespace {

/// Stands where the CUDA device would be in a build without it.
class NoCuda final : public Backend {
 public:
  c10::DeviceType type() const override { return c10::DeviceType::CUDA; }
  std::string_view name() const override { return "cuda"; }
  int count() const override { return 0; }
  std::string unavailable_because() const override {
    return "This build of hasten has no CUDA. Build it with the cuda preset and a CUDA LibTorch.";
  }
  void select(int) const override { refuse(); }
  void synchronize(int) const override { refuse(); }
  void step_boundary() const override {}
  void keep_freed_memory() const override {}
  void release_memory() const override {}
  bool wants_pinned_memory() const override { return true; }
  bool has_fast_bf16() const override { return false; }
  Memory memory(int) const override { refuse(); }
  std::string_view collectives() const override { return "nccl"; }

 private:
  [[noreturn]] void refuse() const { fail(ErrorCode::kUnavailable, "device::cuda", unavailable_because()); }
};

}  // namespace

std::unique_ptr<Backend> make_cuda() {
  return std::make_unique<NoCuda>();
}

}  // namespace hasten::device

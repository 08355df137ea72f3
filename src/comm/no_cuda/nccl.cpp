#include "comm/nccl.h"

#include <hasten/base/error.h>

namespace hasten::comm {

c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>&, int, int,
                                            const at::Device& device, std::chrono::milliseconds) {
  fail(ErrorCode::kUnavailable, "connect", "this build has no NCCL, which ", device.str(),
       " needs. Build hasten with its cuda preset, or use the CPU.");
}

}  // namespace hasten::comm

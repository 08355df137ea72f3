#pragma once

#include <chrono>
#include <cstddef>
#include <memory>

#include <hasten/comm/group.h>

#include "support/ranks.h"

namespace hasten::test {

/// The two ways that small tensors go: with shared memory, and without.
inline constexpr bool kWays[] = {true, false};

/// This rank's place in a group of all ranks of the test.
inline std::shared_ptr<comm::Group> join(const Rank& rank, bool shared_memory = true,
                                         std::chrono::milliseconds timeout = std::chrono::seconds(30),
                                         std::size_t store = 0) {
  return comm::Group::connect(rank.process(store), at::kCPU,
                              {.timeout = timeout, .shared_memory = shared_memory});
}

}  // namespace hasten::test

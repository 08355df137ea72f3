#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <hasten/config/process.h>

#include "comm/shared_segment.h"

namespace gloo::transport {
class Device;
}

/// How the ranks of a group find each other.
namespace hasten::comm {

/// While it lives, c10d does not write to the screen what its exceptions say again.
class SilentC10d {
 public:
  SilentC10d();
  ~SilentC10d();
  SilentC10d(const SilentC10d&) = delete;
  SilentC10d& operator=(const SilentC10d&) = delete;

 private:
  int level_;
};

/// The key-value store that all ranks reach. On one machine it listens on loopback only.
c10::intrusive_ptr<c10d::Store> open_store(const config::Process& process, std::chrono::milliseconds timeout);

/// Waits until all ranks have come. Throws `kTimeout`, naming those that have not.
void await_all_ranks(c10d::Store& store, int rank, int size, std::chrono::milliseconds timeout);

struct Hosts {
  bool one = false;            ///< all ranks are on one host, in one set of namespaces
  bool shared_memory = false;  ///< and all of them want shared memory
};

/// Exchanges where each rank runs. Every rank gets the same answer.
Hosts compare_hosts(c10d::Store& store, int rank, int size, bool wants_shared_memory);

/// What an error of c10d says, without the stack that it carries, and whether it is about time.
[[nodiscard]] std::string text_of(const std::exception& error);
[[nodiscard]] bool is_time_out(const std::exception& error);

/// The network address for Gloo: loopback on one host, otherwise the one that leads to `main_address`.
std::shared_ptr<::gloo::transport::Device> network_device(bool one_host, const std::string& main_address);

/// The memory that all ranks share.
struct Sharing {
  std::unique_ptr<SharedSegment> segment;  ///< null, on all ranks alike, when any of them cannot reach it
  std::int64_t most_bytes = 0;             ///< the largest data that should go through it
};

/// Makes the segment and agrees on its use.
Sharing share_memory(c10d::Store& store, int rank, int size);

}  // namespace hasten::comm

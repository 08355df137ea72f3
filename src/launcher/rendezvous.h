#pragma once

#include <hasten/config/process.h>

#include "launcher/descriptor.h"

namespace hasten::launcher {

/// A socket that listens on 127.0.0.1, opened before the ranks start: no rank can lose a race for the port,
/// those that come before rank 0 wait in its queue, and nothing listens beyond loopback.
struct Listener {
  Descriptor socket{};
  int port = 0;
};

/// Port 0 takes a free one. Throws `kUnavailable`, naming the port, when it is in use.
[[nodiscard]] Listener listen_on_loopback(int port);

/// Rank `rank` of `num_processes` on this machine, meeting at `listener`; rank 0 inherits its socket.
[[nodiscard]] config::Process local_process(int rank, int num_processes, const Listener& listener);

}  // namespace hasten::launcher

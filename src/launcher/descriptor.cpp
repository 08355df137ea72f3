#include "launcher/descriptor.h"

#include <array>
#include <cerrno>
#include <fcntl.h>

#include <hasten/base/error.h>

namespace hasten::launcher {

Pipe open_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) fail_system(errno, "launch", "cannot open a pipe");
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

void set_non_blocking(const Descriptor& descriptor) {
  const int flags = ::fcntl(descriptor.get(), F_GETFL);
  if (flags < 0 || ::fcntl(descriptor.get(), F_SETFL, flags | O_NONBLOCK) != 0) {
    fail_system(errno, "launch", "cannot make a descriptor non-blocking");
  }
}

}  // namespace hasten::launcher

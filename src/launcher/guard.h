#pragma once

#include <sys/types.h>

#include "launcher/descriptor.h"

namespace hasten::launcher {

/// A small process beside the launcher that kills the ranks' process groups when the launcher dies without
/// having ended them, as by SIGKILL. The kernel's parent-death signal, which every rank has too, reaches the
/// rank alone; the guard also reaches what a rank has started.
class Guard {
 public:
  /// Forks the guard; it must be made before anything that it must not hold open. Throws `kSystem`.
  Guard();
  /// Dismisses the guard: the groups are left as they are.
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  void add(pid_t group);

  /// For a forked child, which must not keep the guard's pipe open.
  void release() noexcept;

 private:
  Descriptor groups_{};
  pid_t pid_ = -1;
};

}  // namespace hasten::launcher

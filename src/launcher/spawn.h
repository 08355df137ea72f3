#pragma once

#include <functional>
#include <sys/types.h>
#include <vector>

#include <hasten/config/variable.h>

#include "launcher/guard.h"
#include "launcher/signals.h"

namespace hasten::launcher {

/// Forks a child that runs `body` and exits at once with what it returns. The child leads a process group of
/// its own, has the signals as they were before `signals`, and is killed when the calling thread dies. `body`
/// must not throw. The guard learns of the group. Throws `kSystem`.
[[nodiscard]] pid_t fork_child(SignalWatch& signals, Guard& guard, const std::function<int()>& body);

/// Sets and unsets variables of this process's own environment: only for a child that was just forked.
void set_environment(const std::vector<config::Variable>& variables);

/// A child in a process group of its own cannot read from the terminal: it would be stopped. It reads nothing
/// instead, and a rank other than 0 reads nothing in any case.
void set_standard_input(int rank);

}  // namespace hasten::launcher

#pragma once

#include <functional>
#include <string>
#include <type_traits>
#include <utility>

#include <hasten/launcher/processes.h>

namespace hasten {

/// How many processes `launch` starts, and where they meet.
using LaunchOptions = launcher::ProcessOptions;

namespace detail {
void run_in_processes(const LaunchOptions& options, const std::function<void()>& body);
}

/// Runs `f(arguments...)` in new processes of this program, one a rank, and waits for them. In each an
/// `Accelerator` finds its place by itself. The callable and its arguments are what they are here at the
/// moment of the call; what the processes change in them is not seen here. Output appears live. Throws
/// `Error`, naming the rank and what it said, when one fails; the others are ended. See
/// `launcher::run_processes`.
template <class F, class... Arguments>
void launch(const LaunchOptions& options, F&& f, Arguments&&... arguments) {
  detail::run_in_processes(options, [&] { std::invoke(f, arguments...); });
}

}  // namespace hasten

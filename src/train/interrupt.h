#pragma once

#include <csignal>

namespace hasten::detail {

/// While one lives, the first SIGINT or SIGTERM is noted instead of ending the process, and a second has its
/// default effect. Counted, so that several runs may overlap; the last to go restores what was set before.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  /// The signal that came, or 0.
  [[nodiscard]] static int pending() noexcept;
};

}  // namespace hasten::detail

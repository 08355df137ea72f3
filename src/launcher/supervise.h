#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <vector>

#include "launcher/descriptor.h"
#include "launcher/signals.h"

namespace hasten::launcher {

using Clock = std::chrono::steady_clock;

/// Bytes that a rank sends through a pipe.
class Channel {
 public:
  /// Takes the pipe's reading end.
  explicit Channel(Descriptor source);
  virtual ~Channel() = default;

  virtual void receive(std::string_view bytes) = 0;
  /// Nothing came for a while, or nothing will come any more.
  virtual void flush() {}
  /// Whether `flush` would do something.
  [[nodiscard]] virtual bool holds_back() const { return false; }

  [[nodiscard]] int descriptor() const noexcept { return source_.get(); }
  [[nodiscard]] bool open() const noexcept { return source_.get() >= 0; }
  [[nodiscard]] Clock::time_point last_received() const noexcept { return last_received_; }

  /// Hands on what has come so far, and closes at the end of the stream. Does not wait.
  void pump();

 private:
  Descriptor source_;
  Clock::time_point last_received_{};
};

/// How a process ended.
struct Ending {
  int status = 0;  ///< as waitpid gives it

  [[nodiscard]] bool success() const noexcept { return status == 0; }
  /// Whether this is how a process ends that obeys `signal`: by it, or with code 128 + signal.
  [[nodiscard]] bool obeys(int signal) const noexcept;
  /// The code a launcher ends with for it: the process's own, 128 + n for signal n, and 1 for SIGABRT, since
  /// that is how a C++ program ends on an exception or a failed assertion of its own.
  [[nodiscard]] int exit_code() const noexcept;
  /// `ended with exit code 3` or `was ended by signal 9 (Killed)`.
  [[nodiscard]] std::string text() const;
};

struct Outcome {
  std::vector<Ending> endings{};  ///< by rank
  std::optional<int> failed{};    ///< the rank that failed first, which made the launcher end the others
  int signal = 0;                 ///< what the launcher was sent and passed on to the ranks; 0 for nothing
};

/// Waits for the ranks, hands on what they send, and ends all of them when one fails or the launcher is told
/// to end.
///
/// - A rank that fails: the others get SIGTERM, and SIGKILL after `grace_after_failure`.
/// - SIGINT, SIGTERM, SIGHUP to the launcher are passed on once. SIGKILL follows `grace_after_signal` after
/// SIGTERM and
///   SIGHUP; after SIGINT it follows only once a rank has ended, since a long save may be going on and
///   somebody is at the keyboard: a second SIGINT kills.
/// - SIGTSTP stops the ranks with the launcher, and SIGCONT lets all go on.
///
/// Signals go to process groups, so that what a rank has started gets them too. The destructor kills what is
/// left.
class Supervisor {
 public:
  struct Options {
    std::chrono::milliseconds grace_after_failure{};
    std::chrono::milliseconds grace_after_signal{};
    /// Whether a rank failed only because another one did; the failure of the other one is then waited for a
    /// little.
    std::function<bool(int rank)> is_consequence{};
  };

  Supervisor(Options options, SignalWatch& signals);
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  /// Adds the next rank, which leads a process group.
  void add_rank(pid_t pid);
  void add_channel(std::unique_ptr<Channel> channel);

  /// Returns when all ranks, and what they have started in their groups, have ended.
  [[nodiscard]] Outcome run();

  /// Acts as if the launcher had been sent `signal`; the ranks get SIGTERM for any but SIGINT and SIGHUP.
  void interrupt(int signal);

 private:
  struct Rank {
    pid_t pid = 0;
    bool running = true;
    Ending ending{};
  };

  [[nodiscard]] bool ranks_running() const;
  /// Whether anything still runs in the ranks' groups; the ranks themselves must have been reaped.
  [[nodiscard]] bool groups_alive() const;
  [[nodiscard]] int wait_milliseconds(Clock::time_point now) const;
  void wait_for_events();
  void pump_channels();
  void handle_signals();
  void reap();
  void judge(const std::vector<int>& ended);
  void enforce_deadlines();
  void end_others();
  void send(int signal);
  void stop_with_ranks();

  Options options_;
  SignalWatch& signals_;
  std::vector<Rank> ranks_{};
  std::vector<std::unique_ptr<Channel>> channels_{};
  std::optional<int> failed_{};
  int signal_ = 0;       ///< what the launcher was sent
  int passed_on_ = 0;    ///< what the ranks were sent for it
  bool ending_ = false;  ///< the ranks were told to end because one failed, or is left over
  bool killed_ = false;
  std::optional<Clock::time_point>
      blame_deadline_{};  ///< when to stop waiting for the failure behind a failure
  std::optional<Clock::time_point> kill_deadline_{};
};

}  // namespace hasten::launcher

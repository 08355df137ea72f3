#include <cerrno>
#include <fcntl.h>
#include <memory>
#include <sys/prctl.h>
#include <system_error>
#include <utility>

#include <hasten/base/environment.h>
#include <hasten/base/log.h>
#include <hasten/launcher/launch.h>
#include <hasten/launcher/machine.h>

#include "launcher/executable.h"
#include "launcher/guard.h"
#include "launcher/output.h"
#include "launcher/rendezvous.h"
#include "launcher/signals.h"
#include "launcher/spawn.h"
#include "launcher/supervise.h"

namespace hasten::launcher {
namespace {

/// Makes orphans of the ranks this process's children while it lives. Otherwise they wait for the machine's
/// first process to reap them, which in containers may take long, or forever.
class OrphanReaping {
 public:
  OrphanReaping() {
    ::prctl(PR_GET_CHILD_SUBREAPER, &before_);
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  }
  ~OrphanReaping() { ::prctl(PR_SET_CHILD_SUBREAPER, before_); }
  OrphanReaping(const OrphanReaping&) = delete;
  OrphanReaping& operator=(const OrphanReaping&) = delete;

 private:
  int before_ = 0;
};

/// One launch of a program from its start to its end.
class ProgramLaunch {
 public:
  explicit ProgramLaunch(const LaunchOptions& options)
      : options_(options),
        program_(find_executable(options.command.front())),
        // The socket is last of what may fail, and the guard must not hold it open.
        listener_(listen_on_loopback(options.main_process_port.value_or(0))) {}

  int run() {
    for (int rank = 0; rank < options_.num_processes; ++rank) start(rank);
    // From here on rank 0 alone holds it: the port is free again as soon as rank 0 is gone.
    listener_.socket.reset();
    const auto outcome = supervisor_.run();
    output_.finish();
    errors_.finish();
    return report(outcome);
  }

 private:
  /// A terminal goes to rank 0 itself: only a program that sees the terminal draws a progress bar, in its
  /// width and colours. Lines of the others are few there, and are marked. Anywhere else all ranks are marked
  /// alike.
  [[nodiscard]] bool keeps(int rank, int descriptor) const {
    return options_.num_processes == 1 || (rank == 0 && ::isatty(descriptor) != 0);
  }

  void start(int rank) {
    auto output = keeps(rank, STDOUT_FILENO) ? Pipe() : open_pipe();
    auto errors = keeps(rank, STDERR_FILENO) ? Pipe() : open_pipe();
    auto failure = open_pipe();
    const auto process = local_process(rank, options_.num_processes, listener_);
    const pid_t pid = fork_child(signals_, guard_, [&] {
      set_standard_input(rank);
      if (output.write.get() >= 0) ::dup2(output.write.get(), STDOUT_FILENO);
      if (errors.write.get() >= 0) ::dup2(errors.write.get(), STDERR_FILENO);
      return execute(process, failure.write.get());
    });
    supervisor_.add_rank(pid);
    failure.write.reset();
    require_executed(failure.read, rank);
    add_channel(std::move(output.read), rank, output_);
    last_lines_.push_back(add_channel(std::move(errors.read), rank, errors_));
    pids_.push_back(pid);
  }

  /// In the child. Returns only when the program could not be executed, after writing why.
  int execute(const config::Process& process, int failure) const {
    if (process.store_descriptor >= 0) ::fcntl(process.store_descriptor, F_SETFD, 0);
    set_environment(config::environment_of(process));
    set_environment(config::environment_of(options_.settings));
    if (!environment::get("OMP_NUM_THREADS"))
      set_environment({{"OMP_NUM_THREADS", std::to_string(threads_)}});
    std::vector<char*> arguments;
    for (const auto& argument : options_.command) arguments.push_back(const_cast<char*>(argument.c_str()));
    arguments.push_back(nullptr);
    ::execvp(program_.c_str(), arguments.data());
    const int error = errno;
    [[maybe_unused]] const auto written = ::write(failure, &error, sizeof(error));
    return 126;
  }

  /// The pipe closes by itself when the program is executed.
  void require_executed(const Descriptor& failure, int rank) const {
    int error = 0;
    ssize_t size = 0;
    do size = ::read(failure.get(), &error, sizeof(error));
    while (size < 0 && errno == EINTR);
    require(size != sizeof(error), ErrorCode::kFailedPrecondition, "launch", "rank ", rank,
            " could not execute '", program_, "': ", std::generic_category().message(error),
            ". Is it built for this machine, and is the interpreter that its first line names there?");
  }

  LineForwarder* add_channel(Descriptor source, int rank, MarkedOutput& destination) {
    if (source.get() < 0) return nullptr;
    auto forwarder = std::make_unique<LineForwarder>(std::move(source), rank, destination);
    auto* result = forwarder.get();
    supervisor_.add_channel(std::move(forwarder));
    return result;
  }

  [[nodiscard]] int report(const Outcome& outcome) const {
    if (outcome.failed) log::error(failure_text(*outcome.failed, outcome.endings[to_index(*outcome.failed)]));
    if (outcome.signal != 0) {
      for (const auto& ending : outcome.endings) {
        if (!ending.success()) return 128 + outcome.signal;
      }
      return 0;
    }
    return outcome.failed ? outcome.endings[to_index(*outcome.failed)].exit_code() : 0;
  }

  [[nodiscard]] std::string failure_text(int rank, const Ending& ending) const {
    std::string text =
        concat("[launch] rank ", rank, " of ", options_.num_processes, " (", options_.command.front(),
               ", process ", pids_[to_index(rank)], ") ", ending.text(), ".");
    if (ending.obeys(SIGKILL)) {
      text += " The kernel kills like this when memory runs out: try fewer processes or a smaller batch.";
    }
    if (options_.num_processes > 1) text += " The other ranks were ended.";
    const auto* forwarder = last_lines_[to_index(rank)];
    if (forwarder == nullptr || forwarder->last_lines().empty()) return text;
    text += " Its last lines on standard error:";
    for (const auto& line : forwarder->last_lines()) text += "\n    " + line;
    return text;
  }

  static std::size_t to_index(int rank) { return static_cast<std::size_t>(rank); }

  const LaunchOptions& options_;
  std::string program_;
  int threads_ = threads_per_process(options_.num_processes);
  OrphanReaping orphan_reaping_{};
  SignalWatch signals_{};
  Guard guard_{};
  Listener listener_;
  Supervisor supervisor_{{.grace_after_failure = options_.grace_after_failure,
                          .grace_after_signal = options_.grace_after_signal},
                         signals_};
  MarkedOutput output_{STDOUT_FILENO, [this] { supervisor_.interrupt(SIGPIPE); }};
  MarkedOutput errors_{STDERR_FILENO, [this] { supervisor_.interrupt(SIGPIPE); }};
  std::vector<LineForwarder*> last_lines_{};  ///< by rank; null where the rank keeps the terminal
  std::vector<pid_t> pids_{};
};

}  // namespace

int launch_program(const LaunchOptions& options) {
  require(!options.command.empty(), ErrorCode::kInvalidArgument, "launch",
          "no program was named. Write `hasten launch [OPTIONS] PROGRAM [ARGS...]`.");
  require(options.grace_after_failure.count() >= 0 && options.grace_after_signal.count() >= 0,
          ErrorCode::kInvalidArgument, "launch", "a grace time is negative. Set it to 0 seconds or more.");
  require_sensible_count(options.num_processes, options.oversubscribe);
  return ProgramLaunch(options).run();
}

int exit_code_of(const Error& error) noexcept {
  switch (error.code()) {
    case ErrorCode::kInvalidArgument:
      return 2;
    case ErrorCode::kFailedPrecondition:
      return 126;
    case ErrorCode::kNotFound:
      return 127;
    default:
      return 1;
  }
}

}  // namespace hasten::launcher

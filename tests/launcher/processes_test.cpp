#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <iostream>
#include <netinet/in.h>
#include <stdexcept>
#include <string>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <hasten/base/error.h>
#include <hasten/launcher/processes.h>

#include "launcher/child_process.h"
#include "launcher/signals.h"

namespace hasten {
namespace {

using config::Process;
using launcher::run_processes;
using test::alive;
using test::wait_until;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using Options = launcher::ProcessOptions;

constexpr int kMostPids = 8;

/// Memory that forked children share with their parent.
struct Shared {
  std::atomic<pid_t> pids[kMostPids]{};
  std::atomic<int> ready{0};
  std::atomic<int> flag{0};
};

class Processes : public testing::Test {
 protected:
  void SetUp() override {
    void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    shared_ = new (memory) Shared;
  }
  void TearDown() override { munmap(shared_, sizeof(Shared)); }

  /// Notes this process as number `slot`, and that it is there.
  void arrive(int slot) const {
    shared_->pids[slot] = getpid();
    ++shared_->ready;
  }

  [[nodiscard]] bool all_gone() const {
    return wait_until(
        [this] {
          for (const auto& pid : shared_->pids) {
            if (pid != 0 && alive(pid)) return false;
          }
          return true;
        },
        std::chrono::seconds(5));
  }

  /// The error of a run whose ranks do `body`.
  static Error error_of(const std::function<std::string(const Process&)>& body,
                        Options options = {.num_processes = 2}) {
    try {
      (void)run_processes(options, body);
    } catch (const Error& error) {
      return error;
    }
    return Error(ErrorCode::kSystem, "test", "there was no error");
  }

  Shared* shared_ = nullptr;
};

[[noreturn]] std::string wait_forever() {
  for (;;) pause();
}

/// Runs `body` in a child that stands for the user's program, with its standard output in a pipe.
class Program {
 public:
  explicit Program(const std::function<int()>& body) {
    std::fflush(nullptr);
    int ends[2] = {};
    if (pipe(ends) != 0) throw std::runtime_error("pipe");
    pid_ = fork();
    if (pid_ == 0) {
      dup2(ends[1], STDOUT_FILENO);
      close(ends[0]);
      close(ends[1]);
      const int code = body();
      std::fflush(stdout);
      _exit(code);
    }
    close(ends[1]);
    output_ = ends[0];
  }
  ~Program() { close(output_); }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  void send(int signal) const { kill(pid_, signal); }
  int wait() const {
    int status = 0;
    waitpid(pid_, &status, 0);
    return status;
  }
  /// All that it and its children write, until the last of them has ended.
  [[nodiscard]] std::string output() const {
    std::string text;
    char buffer[4096];
    for (ssize_t size = 0; (size = read(output_, buffer, sizeof(buffer))) > 0;) text.append(buffer, size);
    return text;
  }

 private:
  pid_t pid_ = -1;
  int output_ = -1;
};

// Results
// ----------------------------------------------------------------------------------------------------------

TEST_F(Processes, ReturnWhatEachRankReturned) {
  const auto results = run_processes({.num_processes = 3, .oversubscribe = true}, [](const Process& process) {
    return "rank " + std::to_string(process.rank) + std::string(1, '\0') + std::to_string(getpid());
  });
  ASSERT_EQ(results.size(), 3U);
  for (int rank = 0; rank < 3; ++rank) {
    const auto& result = results[static_cast<std::size_t>(rank)];
    EXPECT_EQ(result.substr(0, 7), "rank " + std::to_string(rank) + std::string(1, '\0'));
    EXPECT_NE(result.substr(7), std::to_string(getpid()));
  }
}

TEST_F(Processes, ReturnMoreThanAPipeHoldsAndAlsoNothing) {
  const auto results = run_processes({.num_processes = 2}, [](const Process& process) {
    return process.rank == 0 ? std::string() : std::string(5'000'000, 'x');
  });
  EXPECT_EQ(results[0], "");
  EXPECT_EQ(results[1], std::string(5'000'000, 'x'));
}

TEST_F(Processes, KnowTheirPlaceAndFindItInTheEnvironmentToo) {
  const auto results = run_processes({.num_processes = 2}, [](const Process& process) {
    auto read = config::process_from_environment();
    read.source = process.source;
    require(read == process, ErrorCode::kMismatch, "test", "rank ", process.rank, " reads another place");
    require(process.world_size == 2 && process.local_world_size == 2 && process.local_rank == process.rank,
            ErrorCode::kMismatch, "test", "wrong place");
    return std::to_string(process.rank);
  });
  EXPECT_THAT(results, ElementsAre("0", "1"));
  EXPECT_EQ(getenv("RANK"), nullptr);
}

TEST_F(Processes, GiveRankZeroASocketThatListensOnLoopback) {
  const auto results = run_processes({.num_processes = 2}, [](const Process& process) -> std::string {
    if (process.rank != 0) return process.store_descriptor == -1 ? "none" : "one";
    sockaddr_in address{};
    socklen_t size = sizeof(address);
    getsockname(process.store_descriptor, reinterpret_cast<sockaddr*>(&address), &size);
    int listening = 0;
    size = sizeof(listening);
    getsockopt(process.store_descriptor, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size);
    const bool right = listening == 1 && ntohl(address.sin_addr.s_addr) == INADDR_LOOPBACK &&
                       ntohs(address.sin_port) == process.main_port;
    return right ? "right" : "wrong";
  });
  EXPECT_THAT(results, ElementsAre("right", "none"));
}

TEST_F(Processes, ShareTheOutputAndWriteNothingTwice) {
  const Program program([] {
    std::printf("parent ");
    std::cout << "stream ";
    (void)run_processes({.num_processes = 2}, [](const Process&) {
      std::printf("child ");
      std::cout << "body ";
      return std::string();
    });
    return 0;
  });
  const auto output = program.output();
  EXPECT_EQ(program.wait(), 0);
  using test::ChildProcess;
  EXPECT_EQ(ChildProcess::count(output, "parent "), 1);
  EXPECT_EQ(ChildProcess::count(output, "stream "), 1);
  EXPECT_EQ(ChildProcess::count(output, "child "), 2);
  EXPECT_EQ(ChildProcess::count(output, "body "), 2);
}

TEST_F(Processes, LeaveTheParentsSignalsAsTheyWere) {
  struct sigaction before{};
  struct sigaction after{};
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGTSTP, SIGCHLD, SIGPIPE}) {
    sigaction(signal, nullptr, &before);
    (void)run_processes({.num_processes = 1}, [](const Process&) { return std::string(); });
    sigaction(signal, nullptr, &after);
    EXPECT_EQ(before.sa_handler, after.sa_handler) << signal;
  }
}

// The same trap without any OpenMP: a forked child has none of its parent's threads.
TEST_F(Processes, WorkAfterTheParentUsedThreads) {
  std::atomic<std::int64_t> sum{0};
#pragma omp parallel for num_threads(4)
  for (int i = 0; i < 1000; ++i) sum += i;
  EXPECT_EQ(sum, 499500);
  for (int round = 0; round < 2; ++round) {
    const auto results = run_processes({.num_processes = 2}, [](const Process&) {
      std::atomic<std::int64_t> sum_here{0};
#pragma omp parallel for num_threads(4)
      for (int i = 0; i < 1000; ++i) sum_here += i;
      return std::to_string(sum_here);
    });
    EXPECT_THAT(results, ElementsAre("499500", "499500"));
  }
}

// Failures
// ---------------------------------------------------------------------------------------------------------

struct Failure {
  std::string name{};
  std::function<void()> act{};  ///< what rank 1 does
  ErrorCode code{};
  std::string text{};
};

class ProcessesWithAFailingRank : public Processes, public testing::WithParamInterface<Failure> {};

TEST_P(ProcessesWithAFailingRank, EndTheOthersAndNameIt) {
  const auto error = error_of([this](const Process& process) {
    arrive(process.rank);
    while (shared_->ready < 2) std::this_thread::yield();
    if (process.rank == 1) GetParam().act();
    return wait_forever();
  });
  EXPECT_EQ(error.code(), GetParam().code);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("[launch] rank 1 of 2 "), HasSubstr(GetParam().text)));
  EXPECT_TRUE(all_gone());
  EXPECT_EQ(run_processes({.num_processes = 2}, [](const Process&) { return std::string("again"); }).size(),
            2U);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, ProcessesWithAFailingRank,
    testing::Values(
        Failure{"Error", [] { fail(ErrorCode::kMismatch, "shapes", "3 against 4."); }, ErrorCode::kMismatch,
                "failed: [shapes] 3 against 4."},
        Failure{"Exception", [] { throw std::runtime_error("boom"); }, ErrorCode::kPeerLost, "failed: boom"},
        Failure{"OtherException", [] { throw 7; }, ErrorCode::kPeerLost, "no std::exception"},
        Failure{"PeerLost", [] { fail(ErrorCode::kPeerLost, "reduce", "rank 0 is gone."); },
                ErrorCode::kPeerLost, "[reduce] rank 0 is gone."},
        Failure{"Killed", [] { raise(SIGKILL); }, ErrorCode::kPeerLost,
                "was ended by signal 9 (Killed) before it returned a result"},
        Failure{"Exit", [] { _exit(5); }, ErrorCode::kPeerLost, "ended with exit code 5 before it returned"}),
    [](const auto& info) { return info.param.name; });

TEST_F(Processes, NameARankThatLeavesWithSuccessButWithoutAResult) {
  const auto error = error_of([](const Process& process) {
    if (process.rank == 1) _exit(0);
    return std::string();
  });
  EXPECT_THAT(error.what(), HasSubstr("rank 1 of 2 ended with exit code 0 before it returned a result"));
}

TEST_F(Processes, BlameTheRankThatFailedAndNotTheOneThatLostIt) {
  // Rank 1 unwinds for longer than rank 0 needs to notice: it says what happened when rank 0 has ended
  // already.
  const auto error = error_of([this](const Process& process) -> std::string {
    arrive(process.rank);
    while (shared_->ready < 2) std::this_thread::yield();
    if (process.rank == 0) fail(ErrorCode::kPeerLost, "reduce", "rank 1 closed its connection.");
    wait_until([this] { return !alive(shared_->pids[0]); });
    fail(ErrorCode::kCorruptData, "data", "boom.");
  });
  EXPECT_EQ(error.code(), ErrorCode::kCorruptData);
  EXPECT_THAT(error.what(), HasSubstr("rank 1 of 2 failed: [data] boom."));
}

TEST_F(Processes, KillARankThatIgnoresTheEnd) {
  const auto error = error_of(
      [this](const Process& process) -> std::string {
        arrive(process.rank);
        if (process.rank == 0) {
          std::signal(SIGTERM, SIG_IGN);
          shared_->flag = 1;
          wait_forever();
        }
        wait_until([this] { return shared_->flag == 1; });
        throw std::runtime_error("boom");
      },
      {.num_processes = 2, .grace_after_failure = std::chrono::milliseconds(100)});
  EXPECT_THAT(error.what(), HasSubstr("boom"));
  EXPECT_TRUE(all_gone());
}

TEST_F(Processes, RefuseBadOptions) {
  const auto nothing = [](const Process&) { return std::string(); };
  EXPECT_EQ(error_of(nothing, {.num_processes = 0}).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error_of(nothing, {.num_processes = 100000}).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error_of(nothing, {.num_processes = 1, .main_process_port = -1}).code(),
            ErrorCode::kInvalidArgument);
}

TEST_F(Processes, RefuseAPortInUse) {
  const auto results = run_processes({.num_processes = 1}, [](const Process& process) -> std::string {
    try {
      (void)run_processes({.num_processes = 1, .main_process_port = process.main_port},
                          [](const Process&) { return std::string(); });
    } catch (const Error& inner) {
      return inner.what();
    }
    return "";
  });
  EXPECT_THAT(results.front(), HasSubstr("is in use"));
}

TEST_F(Processes, RefuseToRunBesideAnotherLaunch) {
  {
    const launcher::SignalWatch other_launch;
    EXPECT_EQ(error_of([](const Process&) { return std::string(); }).code(), ErrorCode::kFailedPrecondition);
  }
  EXPECT_EQ(run_processes({.num_processes = 1}, [](const Process&) { return std::string(); }).size(), 1U);
}

// Signals and orphans
// ----------------------------------------------------------------------------------------------

TEST_F(Processes, DieWithTheParentAndTakeTheirChildrenAlong) {
  const Program program([this] {
    (void)run_processes({.num_processes = 2}, [this](const Process& process) {
      std::signal(SIGTERM, SIG_IGN);
      arrive(process.rank);
      if (fork() == 0) arrive(2 + process.rank);
      return wait_forever();
    });
    return 0;
  });
  ASSERT_TRUE(wait_until([this] { return shared_->ready == 4; }));
  program.send(SIGKILL);
  EXPECT_TRUE(WIFSIGNALED(program.wait()));
  EXPECT_TRUE(all_gone());
}

TEST_F(Processes, EndBySignalBeforeTheParentDoes) {
  const Program program([this] {
    (void)run_processes({.num_processes = 2}, [this](const Process& process) {
      arrive(process.rank);
      return wait_forever();
    });
    return 0;
  });
  ASSERT_TRUE(wait_until([this] { return shared_->ready == 2; }));
  program.send(SIGTERM);
  const int status = program.wait();
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
  EXPECT_TRUE(all_gone());
}

std::atomic<int> handled{0};

TEST_F(Processes, ReturnTheirResultsAfterASignalThatAllHandle) {
  const Program program([this] {
    std::signal(SIGINT, [](int) { ++handled; });
    const auto results = run_processes({.num_processes = 2}, [this](const Process& process) -> std::string {
      arrive(process.rank);
      return wait_until([] { return handled == 1; }) ? "saved" : "not told";
    });
    const bool saved = results == std::vector<std::string>{"saved", "saved"};
    return saved && handled == 1 ? 0 : 1;
  });
  ASSERT_TRUE(wait_until([this] { return shared_->ready == 2; }));
  program.send(SIGINT);
  const int status = program.wait();
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace hasten

#pragma once

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <exception>
#include <fcntl.h>
#include <functional>
#include <gtest/gtest.h>
#include <mutex>
#include <netinet/in.h>
#include <poll.h>
#include <stdexcept>
#include <string>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>

#include <hasten/config/process.h>

/// Tests of several processes: `run_ranks(2, [](Rank& rank) { ... EXPECT_EQ ... })` forks them itself.
namespace hasten::test {

/// What one forked process of a test is told. EXPECT, ASSERT and exceptions in the body become failures of
/// the test in the parent, marked with the rank.
class Rank {
 public:
  /// Which rank this is and where the group meets. `store` numbers the addresses that `RanksOptions::stores`
  /// asked for: each serves one meeting.
  [[nodiscard]] const config::Process& process(std::size_t store = 0) const { return processes_.at(store); }
  [[nodiscard]] int index() const { return process().rank; }
  [[nodiscard]] int size() const { return process().world_size; }

  /// Hands text to the parent: `run_ranks` returns what each rank reported, joined.
  void report(const std::string& text) { send('R', text); }

 private:
  friend class Ranks;
  void send(char kind, const std::string& text) {
    const std::lock_guard lock(mutex_);
    const auto size = static_cast<std::uint32_t>(text.size());
    std::string message(1, kind);
    message.append(reinterpret_cast<const char*>(&size), sizeof size).append(text);
    for (std::size_t done = 0; done < message.size();) {
      const ssize_t count = ::write(pipe_, message.data() + done, message.size() - done);
      if (count < 0 && errno != EINTR) return;
      if (count > 0) done += static_cast<std::size_t>(count);
    }
  }

  std::vector<config::Process> processes_;
  std::mutex mutex_;
  int pipe_ = -1;
};

struct RanksOptions {
  std::chrono::seconds timeout{60};  ///< after this all ranks are killed and the test fails
  std::vector<int> lost = {};  ///< ranks that the test kills or stops; killed once the others have ended
  std::size_t stores = 1;      ///< how many meeting addresses to make
  int ends_by_signal = 0;      ///< the signal by which every rank is to end; 0: each is to end by itself
};

/// The machinery of `run_ranks`.
class Ranks {
 public:
  using Body = std::function<void(Rank&)>;

  static std::vector<std::string> run(int count, const Body& body, const RanksOptions& options) {
    Ranks ranks(count, options);
    for (int rank = 0; rank < count; ++rank) ranks.start(rank, body);
    for (const Store& store : ranks.stores_) ::close(store.descriptor);
    ranks.wait();
    return ranks.finish();
  }

 private:
  struct Store {
    int descriptor;
    int port;
  };
  struct Child {
    pid_t pid = -1;
    int pipe = -1;  // -1 once it has been read to its end
    std::string received;
    bool over_time = false;
  };

  /// Passes on each failed EXPECT and ASSERT of a child.
  class Forward : public ::testing::EmptyTestEventListener {
   public:
    explicit Forward(Rank& rank) : rank_(rank) {}
    void OnTestPartResult(const ::testing::TestPartResult& result) override {
      if (!result.failed()) return;
      const char* file = result.file_name() == nullptr ? "?" : result.file_name();
      rank_.send('F',
                 std::string(file) + ":" + std::to_string(result.line_number()) + "\n" + result.message());
    }

   private:
    Rank& rank_;
  };

  Ranks(int count, const RanksOptions& options)
      : children_(static_cast<std::size_t>(count)), options_(options) {
    for (std::size_t i = 0; i < options.stores; ++i) stores_.push_back(listen_on_loopback());
  }

  static void check(bool fine, const char* what) {
    if (!fine) throw std::system_error(errno, std::generic_category(), what);
  }

  static Store listen_on_loopback() {
    const int descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    check(descriptor >= 0, "socket");
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    check(::bind(descriptor, reinterpret_cast<sockaddr*>(&address), size) == 0, "bind");
    check(::listen(descriptor, 128) == 0, "listen");
    check(::getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &size) == 0, "getsockname");
    return {descriptor, ntohs(address.sin_port)};
  }

  bool is_lost(std::size_t rank) const {
    return std::find(options_.lost.begin(), options_.lost.end(), static_cast<int>(rank)) !=
           options_.lost.end();
  }

  void start(int rank, const Body& body) {
    int ends[2];
    check(::pipe2(ends, O_CLOEXEC) == 0, "pipe2");
    std::fflush(nullptr);
    const pid_t pid = ::fork();
    check(pid >= 0, "fork");
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::close(ends[0]);
      run_child(rank, ends[1], body);
    }
    ::close(ends[1]);
    children_[static_cast<std::size_t>(rank)].pid = pid;
    children_[static_cast<std::size_t>(rank)].pipe = ends[0];
  }

  [[noreturn]] void run_child(int index, int pipe, const Body& body) {
    Rank rank;
    rank.pipe_ = pipe;
    for (const Store& store : stores_) {
      config::Process process;
      process.rank = process.local_rank = index;
      process.world_size = process.local_world_size = static_cast<int>(children_.size());
      process.main_address = "127.0.0.1";
      process.main_port = store.port;
      process.store_descriptor = index == 0 ? store.descriptor : -1;
      if (index != 0) ::close(store.descriptor);
      rank.processes_.push_back(process);
    }
    auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new Forward(rank));
    // A fresh thread, since OpenMP's pool of a forked main thread is unusable.
    std::thread([&] {
      at::set_num_threads(1);
      try {
        body(rank);
      } catch (const std::exception& error) {
        rank.send('F', std::string("exception: ") + error.what());
      } catch (...) {
        rank.send('F', "an exception of unknown type");
      }
    }).join();
    std::fflush(nullptr);
    ::_exit(0);
  }

  /// Reads every pipe to its end, which comes when the process has ended.
  void wait() {
    const auto deadline = std::chrono::steady_clock::now() + options_.timeout;
    while (true) {
      std::vector<pollfd> waiting;
      std::vector<Child*> owners;
      bool only_lost = true;
      for (std::size_t i = 0; i < children_.size(); ++i) {
        if (children_[i].pipe < 0) continue;
        waiting.push_back({children_[i].pipe, POLLIN, 0});
        owners.push_back(&children_[i]);
        only_lost = only_lost && is_lost(i);
      }
      if (waiting.empty()) return;
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
      if (only_lost || left.count() <= 0)
        for (Child* child : owners) {
          child->over_time = !only_lost;
          ::kill(child->pid, SIGKILL);
        }
      const int wait_ms = only_lost || left.count() <= 0 ? -1 : static_cast<int>(left.count());
      if (::poll(waiting.data(), waiting.size(), wait_ms) <= 0) continue;
      for (std::size_t i = 0; i < waiting.size(); ++i)
        if (waiting[i].revents != 0) read_some(*owners[i]);
    }
  }

  static void read_some(Child& child) {
    char buffer[65536];
    const ssize_t count = ::read(child.pipe, buffer, sizeof buffer);
    if (count > 0) {
      child.received.append(buffer, static_cast<std::size_t>(count));
    } else if (count == 0 || errno != EINTR) {
      ::close(child.pipe);
      child.pipe = -1;
    }
  }

  std::vector<std::string> finish() {
    std::vector<std::string> reports(children_.size());
    for (std::size_t i = 0; i < children_.size(); ++i) {
      Child& child = children_[i];
      int status = 0;
      while (::waitpid(child.pid, &status, 0) < 0 && errno == EINTR) {
      }
      std::size_t at = 0;
      std::uint32_t size = 0;
      while (at + 1 + sizeof size <= child.received.size()) {
        const char kind = child.received[at];
        std::memcpy(&size, child.received.data() + at + 1, sizeof size);
        const std::string text = child.received.substr(at + 1 + sizeof size, size);
        at += 1 + sizeof size + size;
        if (kind == 'R') reports[i] += text;
        if (kind == 'F') ADD_FAILURE() << "rank " << i << ": " << text;
      }
      if (child.over_time)
        ADD_FAILURE() << "rank " << i << " had not ended after " << options_.timeout.count() << " s";
      else if (options_.ends_by_signal != 0)
        EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == options_.ends_by_signal)
            << "rank " << i << " ended with wait status " << status;
      else if (WIFSIGNALED(status) && !(is_lost(i) && WTERMSIG(status) == SIGKILL))
        ADD_FAILURE() << "rank " << i << " died: " << ::strsignal(WTERMSIG(status));
      else if (WIFEXITED(status) && WEXITSTATUS(status) != 0)
        ADD_FAILURE() << "rank " << i << " ended with exit status " << WEXITSTATUS(status);
    }
    return reports;
  }

  std::vector<Child> children_;
  std::vector<Store> stores_;
  RanksOptions options_;
};

/// Runs `body` in `count` forked processes of one thread each and waits for them. Call it before any LibTorch
/// work in the test's own process. A failed EXPECT, an exception, a crash or a time-out of any rank fails the
/// test with the rank and the text. Returns what each rank gave to `Rank::report`.
inline std::vector<std::string> run_ranks(int count, const Ranks::Body& body,
                                          const RanksOptions& options = {}) {
  return Ranks::run(count, body, options);
}

}  // namespace hasten::test

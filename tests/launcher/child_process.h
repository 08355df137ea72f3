#pragma once

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <poll.h>
#include <sstream>
#include <stdexcept>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

namespace hasten::test {

/// Waits until `condition` holds; false when it does not within `limit`.
inline bool wait_until(const std::function<bool()>& condition,
                       std::chrono::milliseconds limit = std::chrono::seconds(20)) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

/// The content of a file of /proc, or what could be read of it before its process was gone.
inline std::string read_proc(const std::filesystem::path& path) {
  const std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();  // turns a read that fails into a state of the stream
  return text.str();
}

/// The state letter of a process as the kernel shows it (R, S, T, Z, ...); '-' when there is none.
inline char process_state(const std::filesystem::path& folder) {
  const std::string text = read_proc(folder / "stat");
  const auto name_end = text.rfind(')');
  return name_end == std::string::npos || name_end + 2 >= text.size() ? '-' : text[name_end + 2];
}

inline bool alive(pid_t pid) {
  const char state = process_state("/proc/" + std::to_string(pid));
  return state != '-' && state != 'Z';
}

/// The states of all living processes whose command line holds `token`.
inline std::string states_of(const std::string& token) {
  std::string states;
  std::error_code gone;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", gone)) {
    if (entry.path().filename().string().find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string words = read_proc(entry.path() / "cmdline");
    if (words.find(token) == std::string::npos) continue;
    const char state = process_state(entry.path());
    if (state != '-' && state != 'Z') states += state;
  }
  return states;
}

/// A program with its standard streams in pipes.
class ChildProcess {
 public:
  explicit ChildProcess(std::vector<std::string> command,
                        const std::vector<std::pair<std::string, std::string>>& variables = {}) {
    std::array<int, 2> in{};
    std::array<int, 2> out{};
    std::array<int, 2> error{};
    if (pipe2(in.data(), O_CLOEXEC) != 0 || pipe2(out.data(), O_CLOEXEC) != 0 ||
        pipe2(error.data(), O_CLOEXEC) != 0) {
      throw std::runtime_error("cannot open pipes");
    }
    std::vector<char*> arguments;
    for (auto& word : command) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(in[0], STDIN_FILENO);
      dup2(out[1], STDOUT_FILENO);
      dup2(error[1], STDERR_FILENO);
      for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
      execvp(arguments[0], arguments.data());
      _exit(99);
    }
    close(in[0]);
    close(out[1]);
    close(error[1]);
    input_ = in[1];
    streams_ = {Stream{out[0], {}}, Stream{error[0], {}}};
  }
  ~ChildProcess() {
    if (!reaped_) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    close_input();
    for (auto& stream : streams_) close(stream.descriptor);
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] const std::string& out() const { return streams_[0].text; }
  [[nodiscard]] const std::string& error() const { return streams_[1].text; }

  void send(int signal) const { kill(pid_, signal); }

  void write_input(const std::string& text) const {
    if (write(input_, text.data(), text.size()) != static_cast<ssize_t>(text.size()))
      throw std::runtime_error("write");
  }
  void close_input() {
    if (input_ >= 0) close(std::exchange(input_, -1));
  }
  void close_output() { close(std::exchange(streams_[0].descriptor, -1)); }

  /// Reads until either stream holds `text` `times` times; false when it does not come.
  bool wait_for(const std::string& text, int times = 1) {
    return wait_until([&] {
      read_some();
      return count(out(), text) + count(error(), text) >= times;
    });
  }

  /// Reads to the end and returns the exit code, or minus the signal that ended it; -1000 when it does not
  /// end.
  int finish() {
    close_input();
    int status = 0;
    const bool ended = wait_until(
        [&] {
          read_some();
          return waitpid(pid_, &status, WNOHANG) == pid_;
        },
        std::chrono::seconds(60));
    if (!ended) return -1000;
    reaped_ = true;
    read_some();
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

  static int count(const std::string& text, const std::string& part) {
    int found = 0;
    for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++found;
    return found;
  }

 private:
  struct Stream {
    int descriptor = -1;
    std::string text{};
  };

  void read_some() {
    for (auto& stream : streams_) {
      pollfd readable{.fd = stream.descriptor, .events = POLLIN, .revents = 0};
      std::array<char, 65536> buffer{};
      while (poll(&readable, 1, 0) == 1 && (readable.revents & POLLIN) != 0) {
        const auto size = read(stream.descriptor, buffer.data(), buffer.size());
        if (size <= 0) break;
        stream.text.append(buffer.data(), static_cast<std::size_t>(size));
      }
    }
  }

  pid_t pid_ = -1;
  bool reaped_ = false;
  int input_ = -1;
  std::array<Stream, 2> streams_{};
};

}  // namespace hasten::test

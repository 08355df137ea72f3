#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iostream>
#include <thread>
#include <utility>

#include <hasten/base/error.h>
#include <hasten/launcher/machine.h>
#include <hasten/launcher/processes.h>

#include "launcher/guard.h"
#include "launcher/rendezvous.h"
#include "launcher/signals.h"
#include "launcher/spawn.h"
#include "launcher/supervise.h"

namespace hasten::launcher {
namespace {

using Body = std::function<std::string(const config::Process&)>;

/// What a child sends back, once: this header, then `size` bytes, which are its result or what went wrong.
struct Header {
  enum class Kind : std::uint8_t { kResult, kError, kOtherException };
  Kind kind = Kind::kResult;
  ErrorCode code = ErrorCode::kPeerLost;  ///< of an `Error`
  std::uint64_t size = 0;
};

class ReplyChannel : public Channel {
 public:
  using Channel::Channel;

  void receive(std::string_view bytes) override { received_ += bytes; }

  /// Whether the whole reply has come.
  [[nodiscard]] bool complete() const {
    return received_.size() >= sizeof(Header) && received_.size() - sizeof(Header) >= header().size;
  }
  [[nodiscard]] Header header() const {
    Header header;
    std::memcpy(&header, received_.data(), sizeof(header));
    return header;
  }
  [[nodiscard]] std::string take_text() {
    received_.erase(0, sizeof(Header));
    return std::move(received_);
  }

 private:
  std::string received_{};
};

void write_all(int descriptor, const char* data, std::size_t size) {
  while (size > 0) {
    const auto written = ::write(descriptor, data, size);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return;  // the parent is gone, and this process with it
    data += written;
    size -= static_cast<std::size_t>(written);
  }
}

void send_reply(int descriptor, Header header, const std::string& text) {
  header.size = text.size();
  write_all(descriptor, reinterpret_cast<const char*>(&header), sizeof(header));
  write_all(descriptor, text.data(), text.size());
}

/// In the child: runs `body` and sends what came of it. Returns the exit code.
int run_body(const Body& body, const config::Process& process, int reply) {
  Header header;
  std::string text;
  std::thread([&] {
    try {
      text = body(process);
    } catch (const Error& error) {
      header.kind = Header::Kind::kError;
      header.code = error.code();
      text = error.what();
    } catch (const std::exception& error) {
      header.kind = Header::Kind::kOtherException;
      text = error.what();
    } catch (...) {
      header.kind = Header::Kind::kOtherException;
      text = "an exception that is no std::exception";
    }
  }).join();
  std::cout.flush();
  std::fflush(stdout);
  std::fflush(stderr);
  send_reply(reply, header, text);
  return header.kind == Header::Kind::kResult ? EXIT_SUCCESS : EXIT_FAILURE;
}

/// The children of one call.
class Processes {
 public:
  explicit Processes(const ProcessOptions& options)
      : options_(options), listener_(listen_on_loopback(options.main_process_port.value_or(0))) {}

  Outcome run(const Body& body) {
    for (int rank = 0; rank < options_.num_processes; ++rank) start(rank, body);
    listener_.socket.reset();
    return supervisor_.run();
  }

  std::vector<std::string> results(const Outcome& outcome) {
    if (outcome.failed) fail_with(*outcome.failed, outcome);
    for (int rank = 0; rank < options_.num_processes; ++rank) {
      if (!reply(rank).complete()) fail_with(rank, outcome);
    }
    std::vector<std::string> results;
    for (auto* reply : replies_) results.push_back(reply->take_text());
    return results;
  }

 private:
  void start(int rank, const Body& body) {
    auto pipe = open_pipe();
    const auto process = local_process(rank, options_.num_processes, listener_);
    supervisor_.add_rank(fork_child(signals_, guard_, [&] {
      pipe.read.reset();
      if (rank != 0) listener_.socket.reset();
      set_standard_input(rank);
      set_environment(config::environment_of(process));
      return run_body(body, process, pipe.write.get());
    }));
    auto channel = std::make_unique<ReplyChannel>(std::move(pipe.read));
    replies_.push_back(channel.get());
    supervisor_.add_channel(std::move(channel));
  }

  [[nodiscard]] ReplyChannel& reply(int rank) { return *replies_[static_cast<std::size_t>(rank)]; }

  /// A rank that lost another one says so; the other one is the cause.
  [[nodiscard]] bool lost_a_peer(int rank) {
    if (!reply(rank).complete()) return false;
    const auto header = reply(rank).header();
    return header.kind == Header::Kind::kError && header.code == ErrorCode::kPeerLost;
  }

  [[noreturn]] void fail_with(int rank, const Outcome& outcome) {
    const auto who = concat("rank ", rank, " of ", options_.num_processes, " ");
    const auto others = options_.num_processes > 1 ? " The other ranks were ended." : "";
    if (reply(rank).complete() && reply(rank).header().kind != Header::Kind::kResult) {
      const auto code = reply(rank).header().code;
      fail(code, "launch", who, "failed: ", reply(rank).take_text(), others);
    }
    const auto& ending = outcome.endings[static_cast<std::size_t>(rank)];
    fail(ErrorCode::kPeerLost, "launch", who, ending.text(), " before it returned a result.",
         ending.obeys(SIGKILL) ? " The kernel kills like this when memory runs out." : "", others);
  }

  const ProcessOptions& options_;
  SignalWatch signals_{};
  Guard guard_{};
  Listener listener_;
  Supervisor supervisor_{{.grace_after_failure = options_.grace_after_failure,
                          .grace_after_signal = options_.grace_after_signal,
                          .is_consequence = [this](int rank) { return lost_a_peer(rank); }},
                         signals_};
  std::vector<ReplyChannel*> replies_{};
};

}  // namespace

std::vector<std::string> run_processes(const ProcessOptions& options, const Body& body) {
  require_sensible_count(options.num_processes, options.oversubscribe);
  std::vector<std::string> results;
  std::exception_ptr error;
  int signal = 0;
  {
    Processes processes(options);
    const auto outcome = processes.run(body);
    signal = outcome.signal;
    try {
      results = processes.results(outcome);
    } catch (const Error&) {
      error = std::current_exception();
    }
  }
  // Only now are the process's own dispositions back.
  if (signal != 0) ::raise(signal);
  if (error) std::rethrow_exception(error);
  return results;
}

}  // namespace hasten::launcher

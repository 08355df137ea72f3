#include "comm/rendezvous.h"

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <mutex>
#include <netdb.h>
#include <netinet/in.h>
#include <optional>
#include <resolv.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include <ATen/Parallel.h>
#include <c10/util/Logging.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <hasten/base/error.h>
#include <hasten/base/log.h>

namespace hasten::comm {
namespace {

using std::chrono::milliseconds;

constexpr const char* kName = "connect";
constexpr const char* kLoopback = "127.0.0.1";

bool is_loopback(const std::string& address) {
  return address == "localhost" || address == "::1" || address.starts_with("127.");
}

/// While it lives, this thread asks no name server. c10d's client looks up the name of the address that it
/// connects to, to have it for messages, and asks the network even about loopback: seconds of waiting where
/// no server answers.
class WithoutNameServers {
 public:
  WithoutNameServers() {
    if ((_res.options & RES_INIT) == 0) ::res_init();
    servers_ = std::exchange(_res.nscount, 0);
  }
  ~WithoutNameServers() { _res.nscount = servers_; }
  WithoutNameServers(const WithoutNameServers&) = delete;
  WithoutNameServers& operator=(const WithoutNameServers&) = delete;

 private:
  int servers_ = 0;
};

/// A socket that listens on loopback alone: the store's own would listen on every interface.
int listen_on_loopback(int port) {
  const int descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0) fail_system(errno, kName, "no socket for the store");
  const int yes = 1;
  ::setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  if (::bind(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
      ::listen(descriptor, SOMAXCONN) == 0)
    return descriptor;
  const int error = errno;
  ::close(descriptor);
  require(error != EADDRINUSE, ErrorCode::kUnavailable, kName, "port ", port, " of ", kLoopback,
          " is in use by another program, perhaps another run. Choose another port, or let the launcher "
          "choose one.");
  fail_system(error, kName, concat("cannot listen on port ", port, " of ", kLoopback));
}

std::uint16_t port_of(int descriptor) {
  sockaddr_in address{};
  socklen_t size = sizeof address;
  if (::getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &size) != 0)
    fail_system(errno, kName, concat("descriptor ", descriptor, " for the store is no socket"));
  return ntohs(address.sin_port);
}

/// Waits until something accepts connections at `address`. c10d's client would do that too, but it pauses for
/// half a second and more between its tries, and fills the screen when it gives up.
void await_listener(const std::string& address, int port, int rank, milliseconds timeout) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + timeout;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  for (auto pause = milliseconds(1);; pause = std::min(pause * 2, milliseconds(50))) {
    std::string problem;
    addrinfo* found = nullptr;
    if (const int error = ::getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found);
        error != 0)
      problem = ::gai_strerror(error);
    bool reached = false;
    for (const addrinfo* one = found; one != nullptr && !reached; one = one->ai_next) {
      const int descriptor = ::socket(one->ai_family, one->ai_socktype | SOCK_CLOEXEC, one->ai_protocol);
      reached = descriptor >= 0 && ::connect(descriptor, one->ai_addr, one->ai_addrlen) == 0;
      if (!reached) problem = std::strerror(errno);
      if (descriptor >= 0) ::close(descriptor);
    }
    if (found != nullptr) ::freeaddrinfo(found);
    if (reached) return;
    require(Clock::now() < deadline, ErrorCode::kTimeout, kName, "rank ", rank,
            " could not reach the store of rank 0 at ", address, ":", port, " within ", timeout.count(),
            " ms: ", problem, ". Check that rank 0 runs and that the address and port are right.");
    std::this_thread::sleep_for(pause);
  }
}

std::string string_of(const std::vector<std::uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

std::string key(const char* what, int rank) {
  return concat("hasten/", what, "/", rank);
}

std::vector<std::string> keys(const char* what, int size) {
  std::vector<std::string> all;
  for (int rank = 0; rank < size; ++rank) all.push_back(key(what, rank));
  return all;
}

void set(c10d::Store& store, const std::string& name, const std::string& value) {
  store.set(name, std::vector<std::uint8_t>(value.begin(), value.end()));
}

/// Gives `mine` to all and returns everyone's, in the order of ranks. One round trip.
std::vector<std::string> exchange(c10d::Store& store, const char* what, int rank, int size,
                                  const std::string& mine) {
  set(store, key(what, rank), mine);
  std::vector<std::string> all;
  for (const auto& value : store.multiGet(keys(what, size))) all.push_back(string_of(value));
  return all;
}

/// What two processes have in common when they can share memory and reach each other's loopback.
std::string host_identity() {
  std::string identity;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> identity;
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) == 0) identity += std::string(" ") + name.data();
  for (const char* space : {"/proc/self/ns/pid", "/proc/self/ns/net"}) {
    const ssize_t length = ::readlink(space, name.data(), name.size() - 1);
    if (length > 0) identity.append(" ").append(name.data(), static_cast<std::size_t>(length));
  }
  return identity;
}

/// The address of this machine from which packets to `host` leave.
std::optional<std::string> address_towards(const std::string& host) {
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), "9", &hints, &found) != 0) return std::nullopt;
  std::optional<std::string> result;
  const int descriptor = ::socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_in own{};
  socklen_t size = sizeof own;
  // Connecting a datagram socket sends nothing: it only asks for the route.
  if (descriptor >= 0 && ::connect(descriptor, found->ai_addr, found->ai_addrlen) == 0 &&
      ::getsockname(descriptor, reinterpret_cast<sockaddr*>(&own), &size) == 0) {
    std::array<char, INET_ADDRSTRLEN> text{};
    if (::inet_ntop(AF_INET, &own.sin_addr, text.data(), text.size()) != nullptr) result = text.data();
  }
  if (descriptor >= 0) ::close(descriptor);
  ::freeaddrinfo(found);
  return result;
}

/// A call through shared memory takes less time than one through Gloo at every size (1.2 to 5 times less from
/// 1 MB on, see benchmarks/comm_latency.cpp), but it holds up its thread, while Gloo's threads let it go on.
/// Where cores are to spare, large gradients are therefore better left to Gloo.
std::int64_t most_bytes_through_memory(int ranks) {
  constexpr std::int64_t kWithSpareCores = std::int64_t{1} << 20;
  constexpr std::int64_t kWithout = std::int64_t{1} << 30;
  return ranks * at::get_num_threads() < usable_cores() ? kWithSpareCores : kWithout;
}

}  // namespace

SilentC10d::SilentC10d() : level_(std::exchange(FLAGS_caffe2_log_level, c10::GLOG_FATAL)) {}
SilentC10d::~SilentC10d() {
  FLAGS_caffe2_log_level = level_;
}

std::string text_of(const std::exception& error) {
  const auto* from_torch = dynamic_cast<const c10::Error*>(&error);
  std::string text = from_torch == nullptr ? error.what() : from_torch->what_without_backtrace();
  while (!text.empty() && (text.back() == '.' || text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

bool is_time_out(const std::exception& error) {
  const std::string text = error.what();
  return text.find("imed out") != std::string::npos || text.find("imeout") != std::string::npos;
}

namespace {

c10::intrusive_ptr<c10d::Store> connect_to_store(const config::Process& process, milliseconds timeout) {
  const bool one_machine = process.world_size == process.local_world_size;
  std::string address = process.main_address;
  c10d::TCPStoreOptions options;
  options.timeout = timeout;
  options.waitWorkers = false;  // await_all_ranks says who is missing
  options.isServer = process.rank == 0 && !process.agent_store;
  if (!process.agent_store && (one_machine || is_loopback(address))) {
    address = kLoopback;
    if (options.isServer)
      options.masterListenFd =
          process.store_descriptor >= 0 ? process.store_descriptor : listen_on_loopback(process.main_port);
  }
  options.port = options.masterListenFd ? port_of(*options.masterListenFd)
                                        : static_cast<std::uint16_t>(process.main_port);
  if (!options.isServer) await_listener(address, options.port, process.rank, timeout);
  try {
    const SilentC10d silent;
    std::optional<WithoutNameServers> without_name_servers;
    if (is_loopback(address)) without_name_servers.emplace();
    return c10::make_intrusive<c10d::TCPStore>(address, options);
  } catch (const std::exception& error) {
    fail(is_time_out(error) ? ErrorCode::kTimeout : ErrorCode::kUnavailable, kName, "rank ", process.rank,
         options.isServer ? " could not serve the store" : " could not reach the store of rank 0", " at ",
         address, ":", options.port, ": ", text_of(error),
         ". Check that rank 0 runs and that the address and port are right.");
  }
}

}  // namespace

c10::intrusive_ptr<c10d::Store> open_store(const config::Process& process, milliseconds timeout) {
  // One store serves all groups that the ranks make one after another: the socket that rank 0 has from its
  // launcher can be used once. It stays until the process ends, since other ranks may still ask it.
  struct Opened {
    config::Process process;
    c10::intrusive_ptr<c10d::Store> store;
    int groups = 0;
  };
  static std::mutex mutex;
  static auto* const kOpened = new Opened;
  const std::lock_guard lock(mutex);
  if (kOpened->store == nullptr || kOpened->process != process)
    *kOpened = {.process = process, .store = connect_to_store(process, timeout)};
  kOpened->store->setTimeout(timeout);
  // A launcher that restarts ranks keeps its store, with what the ranks before them wrote.
  return c10::make_intrusive<c10d::PrefixStore>(concat("hasten/", process.attempt, "/", kOpened->groups++),
                                                kOpened->store);
}

void await_all_ranks(c10d::Store& store, int rank, int size, milliseconds timeout) {
  using Clock = std::chrono::steady_clock;
  const SilentC10d silent;
  try {
    set(store, key("here", rank), "");
    // Asks again and again: after c10d's own waiting ran out of time its connection cannot be used any more.
    const auto deadline = Clock::now() + timeout;
    auto pause = std::chrono::microseconds(200);
    while (!store.check(keys("here", size)) && Clock::now() < deadline) {
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 2, std::chrono::microseconds(20'000));
    }
    std::vector<int> missing;
    std::vector<std::string> informed;
    for (int other = 0; other < size; ++other) {
      if (store.check({key("here", other)}))
        informed.push_back(key("informed", other));
      else
        missing.push_back(other);
    }
    if (missing.empty()) return;
    // Rank 0 serves the store: it stays until the others have found out too.
    set(store, key("informed", rank), "");
    const auto farewell = Clock::now() + milliseconds(2000);
    while (rank == 0 && !store.check(informed) && Clock::now() < farewell)
      std::this_thread::sleep_for(milliseconds(5));
    fail(ErrorCode::kTimeout, kName, size - static_cast<int>(missing.size()), " of ", size,
         " processes arrived within ", timeout.count(), " ms; ", ranks_text(missing),
         " did not. Look for the first error of ", ranks_text(missing), ", or check that ", size,
         " processes were started.");
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    fail(ErrorCode::kPeerLost, kName, "rank ", rank,
         " lost the store of rank 0 while the ranks met: ", text_of(error),
         ". Look for the first error of rank 0.");
  }
}

Hosts compare_hosts(c10d::Store& store, int rank, int size, bool wants_shared_memory) {
  const std::string mine = host_identity();
  const auto all = exchange(store, "host", rank, size, mine + (wants_shared_memory ? "+" : "-"));
  Hosts hosts{.one = true, .shared_memory = true};
  for (const std::string& other : all) {
    hosts.one = hosts.one && other.substr(0, other.size() - 1) == all[0].substr(0, all[0].size() - 1);
    hosts.shared_memory = hosts.shared_memory && other.back() == '+';
  }
  hosts.shared_memory = hosts.shared_memory && hosts.one;
  return hosts;
}

std::shared_ptr<::gloo::transport::Device> network_device(bool one_host, const std::string& main_address) {
  if (one_host) return c10d::ProcessGroupGloo::createDeviceForHostname(kLoopback);
  if (const auto address = address_towards(main_address))
    return c10d::ProcessGroupGloo::createDeviceForHostname(*address);
  return c10d::ProcessGroupGloo::createDefaultDevice();
}

Sharing share_memory(c10d::Store& store, int rank, int size) {
  Sharing sharing;
  std::string problem;
  try {
    if (rank == 0) {
      sharing.segment = SharedSegment::create({.size = size});
      sharing.most_bytes = most_bytes_through_memory(size);
      set(store, "hasten/segment", concat(sharing.most_bytes, " ", sharing.segment->ticket()));
    } else {
      const std::string text = string_of(store.get("hasten/segment"));
      const std::size_t space = std::min(text.find(' '), text.size());
      sharing.segment = SharedSegment::attach(rank, text.substr(space));
      sharing.most_bytes = std::stoll(text);
    }
  } catch (const Error& error) {
    problem = error.what();
    if (rank == 0) set(store, "hasten/segment", "none");
  }
  const auto problems = exchange(store, "attached", rank, size, problem);
  for (int other = 0; other < size; ++other) {
    const std::string& text = problems[static_cast<std::size_t>(other)];
    if (text.empty()) continue;
    if (rank == 0)
      log::warning(
          concat("collectives of this host's processes go through Gloo, not through shared memory, which is "
                 "slower: rank ",
                 other, ": ", text));
    return {};
  }
  return sharing;
}

}  // namespace hasten::comm

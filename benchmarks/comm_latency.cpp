// How long collectives between processes of one host take: through shared memory and through Gloo. What
// `share_memory` decides rests on it.
//
//   comm_latency [ranks]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <netinet/in.h>
#include <sched.h>
#include <string>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/ones.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "comm/rendezvous.h"
#include "comm/shared_memory_backend.h"

namespace {

using Clock = std::chrono::steady_clock;

double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

/// The median over many rounds of the mean of a few calls.
template <class F>
double measure(int rounds, F&& call) {
  std::vector<double> times;
  for (int round = 0; round < rounds; ++round) {
    constexpr int kCalls = 10;
    const auto start = Clock::now();
    for (int i = 0; i < kCalls; ++i) call();
    times.push_back(microseconds_since(start) / kCalls);
  }
  std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
  return times[static_cast<std::size_t>(rounds) / 2];
}

void run(int rank, int size, int port, int descriptor) {
  at::set_num_threads(1);
  // Each rank on a core of its own: the scheduler takes longer to part them than some of these measurements.
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(static_cast<std::size_t>(rank % hasten::comm::usable_cores()), &cores);
  ::sched_setaffinity(0, sizeof cores, &cores);
  using namespace hasten;
  config::Process process;
  process.rank = process.local_rank = rank;
  process.world_size = process.local_world_size = size;
  process.main_address = "127.0.0.1";
  process.main_port = port;
  process.store_descriptor = rank == 0 ? descriptor : -1;
  const auto timeout = std::chrono::milliseconds(60'000);
  const auto store = comm::open_store(process, timeout);
  comm::await_all_ranks(*store, rank, size, timeout);
  const auto make_gloo = [&](const char* name) {
    auto options = c10d::ProcessGroupGloo::Options::create(timeout);
    options->devices.push_back(comm::network_device(true, ""));
    return c10::make_intrusive<comm::GlooBackend>(c10::make_intrusive<c10d::PrefixStore>(name, store), rank,
                                                  size, options);
  };
  auto gloo = make_gloo("gloo");
  auto shared = c10::make_intrusive<comm::SharedMemoryBackend>(
      make_gloo("inner"), comm::share_memory(*store, rank, size).segment, std::int64_t{1} << 30, timeout);
  const auto reduce_with = [](c10d::Backend& backend, std::vector<at::Tensor>& tensors) {
    backend.allreduce(tensors, c10d::AllreduceOptions())->wait();
  };
  if (rank == 0)
    std::printf("%d ranks, all_reduce of float32, microseconds a call\n%12s %12s %12s %8s\n", size, "bytes",
                "shared", "gloo", "ratio");
  for (const std::int64_t bytes : {4L, 1024L, 16'384L, 65'536L, 102'400L, 262'144L, 524'288L, 1'048'576L,
                                   2'097'152L, 4'194'304L, 8'388'608L, 16'777'216L}) {
    std::vector<at::Tensor> tensors{at::ones({bytes / 4})};
    const int rounds = bytes > 1'000'000 ? 9 : 41;
    const double ours = measure(rounds, [&] { reduce_with(*shared, tensors); });
    const double theirs = measure(rounds, [&] { reduce_with(*gloo, tensors); });
    if (rank == 0)
      std::printf("%12ld %12.1f %12.1f %8.1f\n", static_cast<long>(bytes), ours, theirs, theirs / ours);
    std::fflush(stdout);
  }
  const double ours = measure(200, [&] { shared->barrier(c10d::BarrierOptions())->wait(); });
  const double theirs = measure(40, [&] { gloo->barrier()->wait(); });
  if (rank == 0) std::printf("%12s %12.1f %12.1f %8.1f\n", "barrier", ours, theirs, theirs / ours);
}

}  // namespace

int main(int count, char** arguments) {
  const int size = count > 1 ? std::atoi(arguments[1]) : 2;
  const int descriptor = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  if (::bind(descriptor, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      ::listen(descriptor, 16) != 0 ||
      ::getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    std::perror("comm_latency");
    return 1;
  }
  for (int rank = 0; rank < size; ++rank)
    if (::fork() == 0) {
      int status = 0;
      try {
        run(rank, size, ntohs(address.sin_port), descriptor);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
        status = 1;
      }
      std::fflush(nullptr);
      ::_exit(status);
    }
  ::close(descriptor);
  int worst = 0;
  int status = 0;
  while (::wait(&status) > 0) worst = std::max(worst, status);
  return worst == 0 ? 0 : 1;
}

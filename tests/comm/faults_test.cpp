#include <arpa/inet.h>
#include <array>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <set>
#include <sstream>
#include <string>
#include <sys/resource.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <hasten/base/error.h>
#include <hasten/base/log.h>
#include <hasten/comm/group.h>

#include "comm/join.h"
#include "comm/rendezvous.h"
#include "support/errors.h"
#include "support/ranks.h"

/// What happens to a group when ranks die, stop, leave, never come, or go in any order.
namespace hasten {
namespace {

using test::error_of;
using test::join;
using test::kWays;

using comm::Group;
using comm::ReduceOp;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

TEST(Faults, ARankThatDoesNotCallIsNamedInTime) {
  for (const bool shared : kWays)
    test::run_ranks(3,
                    [&](test::Rank& rank) {
                      const auto group = join(rank, shared, milliseconds(1000));
                      group->barrier();
                      if (rank.index() == 1) ::raise(SIGSTOP);
                      const auto start = steady_clock::now();
                      const auto [code, text] = error_of([&] { return group->gather(at::ones({2})); });
                      EXPECT_EQ(code, ErrorCode::kTimeout) << text;
                      EXPECT_THAT(text, AllOf(HasSubstr("[gather] rank 1 did not"), HasSubstr("1000")));
                      EXPECT_LT(steady_clock::now() - start, milliseconds(3000));
                    },
                    {.lost = {1}});
}

TEST(Faults, AKilledRankIsReportedQuickly) {
  for (const bool shared : kWays)
    for (const std::int64_t count : {10, 3'000'000}) {
      SCOPED_TRACE(testing::Message() << count << " values, shared memory " << shared);
      test::run_ranks(3,
                      [&](test::Rank& rank) {
                        const auto group = join(rank, shared);
                        static_cast<void>(group->all_reduce(at::ones({count}), ReduceOp::kSum));
                        if (rank.index() == 2) ::raise(SIGKILL);
                        const auto start = steady_clock::now();
                        const auto [code, text] =
                            error_of([&] { return group->all_reduce(at::ones({count}), ReduceOp::kSum); });
                        EXPECT_EQ(code, ErrorCode::kPeerLost) << text;
                        EXPECT_THAT(text, HasSubstr("[all_reduce]"));
                        EXPECT_THAT(text, HasSubstr(shared ? "rank 2 ended" : "ended"));
                        EXPECT_LT(steady_clock::now() - start, milliseconds(5000));
                      },
                      {.lost = {2}});
    }
}

TEST(Faults, ARankKilledWithinALargeCallIsReported) {
  for (const bool shared : kWays)
    test::run_ranks(2,
                    [&](test::Rank& rank) {
                      const auto group = join(rank, shared);
                      const at::Tensor large = at::ones({8'000'000});
                      const at::Tensor part = at::zeros({4'000'000});
                      comm::Pending pending;
                      if (rank.index() == 0) pending = group->reduce_scatter(part, large, ReduceOp::kSum);
                      if (rank.index() == 1) ::raise(SIGKILL);
                      const auto [code, text] = error_of([&] { pending.wait(); });
                      EXPECT_EQ(code, ErrorCode::kPeerLost);
                      EXPECT_THAT(text, HasSubstr("[reduce_scatter]"));
                      // And what follows fails too.
                      EXPECT_EQ(error_of([&] { group->barrier(); }).first, ErrorCode::kPeerLost);
                    },
                    {.lost = {1}});
}

TEST(Faults, SendingToALostRankIsAnErrorAndNoSignal) {
  test::run_ranks(2,
                  [](test::Rank& rank) {
                    const auto group = join(rank, false);
                    if (rank.index() == 1) ::raise(SIGKILL);
                    const at::Tensor large = at::ones({3'000'000});
                    const auto [code, text] = error_of([&] {
                      for (int tag = 0; tag < 1000; ++tag) {
                        group->send(large, 1, tag).wait();
                      }
                    });
                    EXPECT_EQ(code, ErrorCode::kPeerLost) << text;
                  },
                  {.lost = {1}});
}

TEST(Faults, ARankThatLeftIsReported) {
  test::run_ranks(2, [](test::Rank& rank) {
    auto group = join(rank);
    if (rank.index() == 0) {
      group.reset();
      return;
    }
    const auto [code, text] = error_of([&] { group->barrier(); });
    EXPECT_EQ(code, ErrorCode::kPeerLost);
    EXPECT_THAT(text, AnyOf(HasSubstr("rank 0 left the group"), HasSubstr("rank 0 ended")));
  });
}

TEST(Faults, ARankThatNeverComesIsNamed) {
  test::run_ranks(3, [](test::Rank& rank) {
    if (rank.index() == 1) return;
    const auto start = steady_clock::now();
    const auto [code, text] = error_of([&] { join(rank, true, milliseconds(1000)); });
    EXPECT_EQ(code, ErrorCode::kTimeout);
    EXPECT_THAT(text, AllOf(HasSubstr("[connect] 2 of 3 processes arrived within 1000 ms"),
                            HasSubstr("rank 1 did not")));
    EXPECT_LT(steady_clock::now() - start, milliseconds(4000));
  });
}

TEST(Faults, AMissingRankZeroIsNamed) {
  test::run_ranks(2, [](test::Rank& rank) {
    if (rank.index() == 0) return;  // its socket goes with it
    config::Process process = rank.process();
    const auto [code, text] = error_of(
        [&] { Group::connect(process, at::kCPU, {.timeout = milliseconds(1000), .shared_memory = true}); });
    EXPECT_EQ(code, ErrorCode::kTimeout) << text;
    EXPECT_THAT(text, AllOf(HasSubstr("[connect] rank 1 could not reach"), HasSubstr("127.0.0.1")));
  });
}

TEST(Faults, APortInUseIsReported) {
  test::run_ranks(1, [](test::Rank& rank) {
    config::Process process = rank.process();
    process.world_size = process.local_world_size = 2;
    process.store_descriptor = -1;
    const auto [code, text] = error_of([&] { Group::connect(process, at::kCPU); });
    EXPECT_EQ(code, ErrorCode::kUnavailable);
    EXPECT_THAT(text,
                AllOf(HasSubstr("[connect] port " + std::to_string(process.main_port)), HasSubstr("in use")));
  });
}

TEST(Faults, ImpossibleRanksAreRefused) {
  config::Process process;
  process.world_size = 2;
  process.rank = 2;
  EXPECT_EQ(error_of([&] { Group::connect(process, at::kCPU); }).first, ErrorCode::kInvalidArgument);
}

TEST(Faults, AGroupWithoutSharedMemoryForOneRankUsesGlooOnAll) {
  test::run_ranks(3, [](test::Rank& rank) {
    std::string warning;
    log::set_sink([&](log::Level, std::string_view text) { warning += text; });
    if (rank.index() == 0) {
      ::signal(SIGXFSZ, SIG_IGN);
      const rlimit limit{4096, 4096};  // no memory can be had for the segment
      ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
    }
    const auto group = join(rank);
    EXPECT_FALSE(group->uses_shared_memory());
    EXPECT_EQ(group->all_reduce(at::ones({1}), ReduceOp::kSum).item<float>(), 3);
    EXPECT_EQ(warning.find("through Gloo") != std::string::npos, rank.index() == 0) << warning;
  });
  test::run_ranks(3, [&](test::Rank& rank) {
    const auto group = join(rank, rank.index() != 2);
    EXPECT_FALSE(group->uses_shared_memory());
    EXPECT_EQ(group->all_reduce(at::ones({1}), ReduceOp::kSum).item<float>(), 3);
  });
}

// ---- listening ----

/// The local addresses, in the kernel's hexadecimal form, on which this process listens.
std::vector<std::string> listening_addresses() {
  std::set<std::string> own;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code ignored;
    const std::string target = std::filesystem::read_symlink(entry.path(), ignored).string();
    if (target.starts_with("socket:[")) own.insert(target.substr(8, target.size() - 9));
  }
  std::vector<std::string> addresses;
  for (const char* table : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream in(table);
    std::string line;
    std::getline(in, line);
    while (std::getline(in, line)) {
      std::istringstream fields(line);
      std::string number, local, remote, state, queues, timer, retransmits, user, timeout, inode;
      fields >> number >> local >> remote >> state >> queues >> timer >> retransmits >> user >> timeout >>
          inode;
      if (state == "0A" && own.contains(inode)) addresses.push_back(local.substr(0, local.find(':')));
    }
  }
  return addresses;
}

int free_port() {
  const int descriptor = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  EXPECT_EQ(::bind(descriptor, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(::getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &size), 0);
  ::close(descriptor);
  return ntohs(address.sin_port);
}

TEST(Faults, NothingListensBeyondLoopback) {
  for (const int port : {0, free_port()})
    for (const char* name : {"127.0.0.1", "localhost", "a-name-that-nobody-resolves"})
      test::run_ranks(2, [&](test::Rank& rank) {
        config::Process process = rank.process();
        process.main_address = name;
        if (port != 0) {
          if (process.store_descriptor >= 0) ::close(process.store_descriptor);
          process.store_descriptor = -1;
          process.main_port = port;
        }
        const auto group = Group::connect(process, at::kCPU);
        group->all_reduce_async(at::ones({1'000'000}), ReduceOp::kSum).wait();
        const auto addresses = listening_addresses();
        EXPECT_GE(addresses.size(), rank.index() == 0 ? 1U : 0U);
        for (const std::string& address : addresses)
          EXPECT_THAT(address, AnyOf("0100007F", "0000000000000000FFFF00000100007F",
                                     "00000000000000000000000001000000"));
        group->barrier();
      });
}

TEST(Faults, GroupsMeetInTheStoreOfTheLauncher) {
  test::run_ranks(3, [](test::Rank& rank) {
    if (rank.index() == 0) {  // plays the launcher
      c10d::TCPStoreOptions options;
      options.isServer = true;
      options.waitWorkers = false;
      options.masterListenFd = rank.process().store_descriptor;
      options.port = static_cast<std::uint16_t>(rank.process().main_port);
      c10d::TCPStore store("127.0.0.1", options);
      store.wait({"done/0", "done/1"}, milliseconds(30'000));
      return;
    }
    config::Process process = rank.process();
    process.rank = process.local_rank = rank.index() - 1;
    process.world_size = process.local_world_size = 2;
    process.agent_store = true;
    for (int round = 0; round < 2;
         ++round) {  // the keys of the first group must not be taken for the second's
      const auto group = Group::connect(process, at::kCPU);
      EXPECT_EQ(group->rank(), process.rank);
      EXPECT_EQ(group->all_reduce(at::ones({1}), ReduceOp::kSum).item<float>(), 2);
    }
    c10d::TCPStoreOptions options;
    options.port = static_cast<std::uint16_t>(process.main_port);
    c10d::TCPStore store("127.0.0.1", options);
    store.set("done/" + std::to_string(process.rank), std::vector<std::uint8_t>());
  });
}

TEST(Faults, GlooHasAnAddressOnSeveralHosts) {
  test::run_ranks(1, [](test::Rank&) {
    EXPECT_NE(comm::network_device(false, "127.0.0.1"), nullptr);
    EXPECT_NE(comm::network_device(true, "elsewhere"), nullptr);
  });
}

// ---- opening and closing ----

TEST(Faults, GroupsOpenAndCloseManyTimes) {
  constexpr std::size_t kTimes = 200;
  test::run_ranks(2,
                  [&](test::Rank& rank) {
                    std::vector<at::Tensor> tensors;
                    std::vector<comm::Pending> pending;
                    for (std::size_t i = 0; i < kTimes; ++i) {
                      auto group = join(rank, i % 3 != 0, milliseconds(30'000), i);
                      tensors.push_back(at::ones({300'000}));
                      pending.push_back(group->all_reduce_async(tensors.back(), ReduceOp::kSum));
                      if (i % 2 == 0) pending.back().wait();
                      EXPECT_EQ(group->all_reduce(at::ones({1}), ReduceOp::kSum).item<float>(), 2);
                      if (i % 4 == 0) group->process_group()->barrier()->wait();
                    }
                  },
                  {.timeout = std::chrono::seconds(100), .stores = kTimes});
}

TEST(Faults, AGroupIsDestroyedWithCallsThatNeverEnd) {
  for (const bool shared : kWays)
    test::run_ranks(2, [&](test::Rank& rank) {
      auto group = join(rank, shared);
      const at::Tensor large = at::ones({2'000'000});
      const at::Tensor part = at::zeros({1'000'000});
      at::Tensor inbox = at::zeros({10});
      comm::Pending never;
      comm::Pending message;
      if (rank.index() == 0) {
        never = group->reduce_scatter(part, large, ReduceOp::kSum);
        message = group->recv(inbox, 1, 5);
        const auto start = steady_clock::now();
        group.reset();
        EXPECT_LT(steady_clock::now() - start, milliseconds(5000));
        EXPECT_THAT(error_of([&] { never.wait(); }).second,
                    AllOf(HasSubstr("[reduce_scatter]"), AnyOf(HasSubstr("destroyed"), HasSubstr("left"))));
        EXPECT_THAT(error_of([&] { message.wait(); }).second, HasSubstr("[recv] the group was destroyed"));
      } else {
        EXPECT_EQ(error_of([&] { group->barrier(); }).first, ErrorCode::kPeerLost);
      }
    });
}

TEST(Faults, TheConnectionsLiveAsLongAsSomebodyHoldsTheProcessGroup) {
  test::run_ranks(2, [](test::Rank& rank) {
    auto group = join(rank);
    const auto process_group = group->process_group();
    group.reset();
    std::vector<at::Tensor> tensors{at::ones({5})};
    const auto work = process_group->allreduce(tensors);
    work->wait();
    EXPECT_TRUE(work->isCompleted());
    EXPECT_TRUE(tensors[0].equal(at::full({5}, 2.0F)));
    const auto future = work->getFuture();
    future->wait();
    EXPECT_TRUE(future->value().toTensorVector().at(0).equal(tensors[0]));
  });
}

TEST(Faults, C10dsOwnCallsGoThrough) {
  for (const bool shared : kWays)
    test::run_ranks(2, [&](test::Rank& rank) {
      const auto group = join(rank, shared);
      const auto& pg = group->process_group();
      const float r = static_cast<float>(rank.index());
      for (const std::int64_t count : {6, 600'000}) {
        std::vector<at::Tensor> strided{at::full({count / 2, 2}, r).t()};
        if (shared && count == 6) {
          pg->broadcast(strided, {.rootRank = 1})->wait();
          EXPECT_TRUE(strided[0].equal(at::ones({2, count / 2})));
        }
        std::vector<at::Tensor> input{at::full({count}, r)};
        std::vector<std::vector<at::Tensor>> outputs{{at::zeros({count}), at::zeros({count})}};
        pg->allgather(outputs, input)->wait();
        EXPECT_TRUE(outputs[0][1].equal(at::ones({count})));
        c10d::AllreduceOptions options;
        options.reduceOp = c10d::ReduceOp::AVG;
        pg->allreduce(input, options)->wait();
        EXPECT_TRUE(input[0].equal(at::full({count}, 0.5F)));
        std::vector<at::Tensor> bits{at::full({count}, rank.index() + 1, at::kInt)};
        options.reduceOp = c10d::ReduceOp::BOR;
        pg->allreduce(bits, options)->wait();
        EXPECT_TRUE(bits[0].equal(at::full({count}, 3, at::kInt)));
        std::vector<at::Tensor> pieces{at::full({4}, r), at::ones({2})};
        pg->allreduce_coalesced(pieces)->wait();
        EXPECT_TRUE(pieces[0].equal(at::ones({4})));
        pg->barrier()->wait();
      }
    });
}

TEST(Faults, NothingIsLeftInTheFileSystem) {
  const auto ours = [] {
    int count = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm"))
      count += entry.path().filename().string().find("hasten") != std::string::npos;
    return count;
  };
  test::run_ranks(2,
                  [&](test::Rank& rank) {
                    const auto group = join(rank);
                    EXPECT_TRUE(group->uses_shared_memory());
                    EXPECT_EQ(ours(), 0);
                    group->barrier();
                    ::raise(SIGKILL);
                  },
                  {.lost = {0, 1}});
  EXPECT_EQ(ours(), 0);
}

}  // namespace
}  // namespace hasten

#include <cstdlib>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>
#include <netinet/in.h>
#include <string>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

#include <hasten/base/error.h>
#include <hasten/config/options.h>
#include <hasten/config/process.h>

#include "config/slurm.h"

namespace hasten {
namespace {

using config::Process;
using config::process_from_environment;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

using Variables = std::map<std::string, std::string>;

/// An environment in which a launcher has set nothing but `variables`.
class LauncherEnvironment {
 public:
  explicit LauncherEnvironment(const Variables& variables) {
    std::vector<std::string> names;
    for (char** entry = environ; *entry != nullptr; ++entry)
      names.emplace_back(*entry, std::string(*entry).find('='));
    for (const auto& name : names) {
      if (is_of_a_launcher(name)) unsetenv(name.c_str());
    }
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
    set_ = variables;
  }
  ~LauncherEnvironment() {
    for (const auto& [name, value] : set_) unsetenv(name.c_str());
  }
  LauncherEnvironment(const LauncherEnvironment&) = delete;
  LauncherEnvironment& operator=(const LauncherEnvironment&) = delete;

 private:
  static bool is_of_a_launcher(const std::string& name) {
    for (const std::string start : {"RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "TORCHELASTIC_", "HASTEN_",
                                    "OMPI_", "PMIX_", "SLURM_"}) {
      if (name.starts_with(start)) return true;
    }
    return false;
  }

  Variables set_{};
};

/// Reads the process in that environment and leaves its source, which is only for messages, out.
Process read(const Variables& variables) {
  const LauncherEnvironment environment(variables);
  auto process = process_from_environment();
  process.source.clear();
  return process;
}

std::string error_of(const Variables& variables) {
  const LauncherEnvironment environment(variables);
  try {
    (void)process_from_environment();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "no error";
}

Variables operator+(Variables left, const Variables& right) {
  for (const auto& [name, value] : right) left[name] = value;
  return left;
}

const Variables kTorchrun{{"RANK", "5"},
                          {"LOCAL_RANK", "1"},
                          {"WORLD_SIZE", "8"},
                          {"LOCAL_WORLD_SIZE", "4"},
                          {"MASTER_ADDR", "10.0.0.1"},
                          {"MASTER_PORT", "29500"}};

TEST(ProcessFromEnvironment, IsOneProcessWithoutALauncher) {
  EXPECT_EQ(read({}), Process{});
}

TEST(ProcessFromEnvironment, ReadsTheContractOfTorchrun) {
  Process expected{.rank = 5,
                   .local_rank = 1,
                   .world_size = 8,
                   .local_world_size = 4,
                   .main_address = "10.0.0.1",
                   .main_port = 29500};
  EXPECT_EQ(read(kTorchrun), expected);
  expected.agent_store = true;
  expected.attempt = 2;
  EXPECT_EQ(read(kTorchrun +
                 Variables{{"TORCHELASTIC_USE_AGENT_STORE", "True"}, {"TORCHELASTIC_RESTART_COUNT", "2"}}),
            expected);
}

TEST(ProcessFromEnvironment, NeedsNoMeetingPlaceForOneProcess) {
  EXPECT_EQ(read({{"RANK", "0"}, {"WORLD_SIZE", "1"}}), Process{});
}

TEST(ProcessFromEnvironment, TakesRanksThatMeetOnLoopbackForOneMachine) {
  const Variables there{{"RANK", "2"}, {"WORLD_SIZE", "3"}, {"MASTER_PORT", "29500"}};
  const auto here = read(there + Variables{{"MASTER_ADDR", "127.0.0.1"}});
  EXPECT_EQ(here.local_rank, 2);
  EXPECT_EQ(here.local_world_size, 3);
  const auto apart = read(there + Variables{{"MASTER_ADDR", "node1"}});
  EXPECT_EQ(apart.local_rank, 0);
  EXPECT_EQ(apart.local_world_size, 1);
}

TEST(ProcessFromEnvironment, ReadsBackWhatItWrites) {
  for (const bool agent_store : {false, true}) {
    const Process process{.rank = 1,
                          .local_rank = 1,
                          .world_size = 3,
                          .local_world_size = 3,
                          .main_address = "127.0.0.1",
                          .main_port = 4321,
                          .agent_store = agent_store,
                          .attempt = agent_store ? 1 : 0};
    Variables variables;
    for (const auto& [name, value] : config::environment_of(process)) {
      if (value) variables[name] = *value;
    }
    EXPECT_EQ(read(variables), process);
  }
}

TEST(ProcessFromEnvironment, UnsetsWhatAnOuterLauncherLeft) {
  for (const auto& [name, value] : config::environment_of(Process{.rank = 1, .world_size = 2})) {
    const bool left = name == "HASTEN_STORE_FD" || name.starts_with("TORCHELASTIC_");
    EXPECT_EQ(value.has_value(), !left) << name;
  }
}

TEST(ProcessFromEnvironment, TakesTheInheritedSocketOnRankZeroOnly) {
  const int listening = socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_EQ(listen(listening, 1), 0);
  const Variables descriptor{{"HASTEN_STORE_FD", std::to_string(listening)},
                             {"MASTER_ADDR", "127.0.0.1"},
                             {"MASTER_PORT", "1234"},
                             {"WORLD_SIZE", "2"}};
  EXPECT_EQ(read(descriptor + Variables{{"RANK", "0"}}).store_descriptor, listening);
  EXPECT_EQ(read(descriptor + Variables{{"RANK", "1"}}).store_descriptor, -1);
  close(listening);
  EXPECT_THAT(error_of(descriptor + Variables{{"RANK", "0"}}),
              AllOf(HasSubstr("HASTEN_STORE_FD=" + std::to_string(listening)), HasSubstr("closed it")));
}

struct BadEnvironment {
  std::string name{};
  Variables variables{};
  std::vector<std::string> said{};
};

class BadProcess : public testing::TestWithParam<BadEnvironment> {};

TEST_P(BadProcess, IsRefusedWithTheValues) {
  const auto message = error_of(GetParam().variables);
  for (const auto& part : GetParam().said) EXPECT_THAT(message, HasSubstr(part));
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, BadProcess,
    testing::Values(
        BadEnvironment{"NoWorldSize", {{"RANK", "1"}}, {"RANK=1", "WORLD_SIZE unset"}},
        BadEnvironment{"NoRank", {{"WORLD_SIZE", "2"}}, {"RANK unset", "WORLD_SIZE=2"}},
        BadEnvironment{"RankTooLarge", kTorchrun + Variables{{"RANK", "8"}}, {"rank 8 of 8"}},
        BadEnvironment{
            "LocalRankTooLarge", kTorchrun + Variables{{"LOCAL_RANK", "4"}}, {"local rank 4 of 4"}},
        BadEnvironment{
            "MoreHereThanInAll", kTorchrun + Variables{{"LOCAL_WORLD_SIZE", "9"}}, {"of 8", "of 9"}},
        BadEnvironment{
            "LocalRankAboveRank", kTorchrun + Variables{{"RANK", "0"}}, {"rank 0 of 8", "local rank 1"}},
        BadEnvironment{"RankIsNoNumber", kTorchrun + Variables{{"RANK", "one"}}, {"RANK is 'one'"}},
        BadEnvironment{"RankIsNegative", kTorchrun + Variables{{"RANK", "-1"}}, {"RANK is '-1'"}},
        BadEnvironment{"NoRanks", kTorchrun + Variables{{"WORLD_SIZE", "0"}}, {"WORLD_SIZE is '0'"}},
        BadEnvironment{
            "PortTooLarge", kTorchrun + Variables{{"MASTER_PORT", "65536"}}, {"MASTER_PORT is '65536'"}},
        BadEnvironment{
            "NoAddress", kTorchrun + Variables{{"MASTER_ADDR", ""}}, {"MASTER_ADDR unset", "hasten launch"}},
        BadEnvironment{
            "NoPort", kTorchrun + Variables{{"MASTER_PORT", ""}}, {"MASTER_PORT unset", "10.0.0.1"}},
        BadEnvironment{
            "HalfLocal", kTorchrun + Variables{{"LOCAL_WORLD_SIZE", ""}}, {"LOCAL_WORLD_SIZE unset"}},
        BadEnvironment{
            "HalfOpenMpi", {{"OMPI_COMM_WORLD_RANK", "1"}}, {"OMPI_COMM_WORLD_SIZE unset", "mpirun"}},
        BadEnvironment{"OpenMpiOnTwoMachines",
                       {{"OMPI_COMM_WORLD_RANK", "0"},
                        {"OMPI_COMM_WORLD_SIZE", "4"},
                        {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                        {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                        {"PMIX_NAMESPACE", "job"}},
                       {"mpirun started 4 processes", "2 on this one", "mpirun -x MASTER_ADDR"}},
        BadEnvironment{"OpenMpiWithoutAJob",
                       {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}},
                       {"Set MASTER_PORT"}},
        BadEnvironment{
            "SlurmWithoutTasks", {{"SLURM_PROCID", "0"}, {"SLURM_STEP_ID", "0"}}, {"SLURM_NTASKS"}},
        BadEnvironment{
            "SlurmRankTooLarge",
            {{"SLURM_PROCID", "2"}, {"SLURM_STEP_ID", "0"}, {"SLURM_NTASKS", "2"}, {"SLURM_JOB_ID", "1"}},
            {"srun gives rank 2 of 2"}}),
    [](const auto& info) { return info.param.name; });

// OpenMPI and Slurm
// ------------------------------------------------------------------------------------------------

const Variables kOpenMpi{{"OMPI_COMM_WORLD_RANK", "1"},
                         {"OMPI_COMM_WORLD_SIZE", "2"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                         {"PMIX_NAMESPACE", "foobar"}};

// The FNV test vectors give 0xbf9cf968 for "foobar"; modulo 20000 that is 15720.
TEST(ProcessFromEnvironment, ReadsOpenMpiAndDerivesThePortFromTheJob) {
  const Process expected{.rank = 1,
                         .local_rank = 1,
                         .world_size = 2,
                         .local_world_size = 2,
                         .main_address = "127.0.0.1",
                         .main_port = 10000 + 15720};
  EXPECT_EQ(read(kOpenMpi), expected);
  EXPECT_NE(read(kOpenMpi + Variables{{"PMIX_NAMESPACE", "foobaz"}}).main_port, expected.main_port);
}

TEST(ProcessFromEnvironment, LetsTheUserNameTheMeetingPlaceUnderMpirun) {
  const auto process = read(kOpenMpi + Variables{{"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                                                 {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
                                                 {"MASTER_ADDR", "node7"},
                                                 {"MASTER_PORT", "4000"}});
  EXPECT_EQ(process.main_address, "node7");
  EXPECT_EQ(process.main_port, 4000);
  EXPECT_EQ(process.local_world_size, 1);
}

TEST(ProcessFromEnvironment, PrefersTheContractToMpirun) {
  EXPECT_EQ(read(kOpenMpi + kTorchrun).world_size, 8);
}

const Variables kSlurm{{"SLURM_PROCID", "4"},
                       {"SLURM_LOCALID", "1"},
                       {"SLURM_NODEID", "1"},
                       {"SLURM_STEP_ID", "0"},
                       {"SLURM_JOB_ID", "42"},
                       {"SLURM_STEP_NUM_TASKS", "5"},
                       {"SLURM_NTASKS", "99"},
                       {"SLURM_STEP_TASKS_PER_NODE", "3,2"},
                       {"SLURM_STEP_NODELIST", "gpu[007-008]"},
                       {"SLURM_JOB_NODELIST", "other[1-9]"}};

TEST(ProcessFromEnvironment, ReadsASlurmStepOnSeveralMachines) {
  const auto process = read(kSlurm);
  EXPECT_EQ(process.rank, 4);
  EXPECT_EQ(process.local_rank, 1);
  EXPECT_EQ(process.world_size, 5);
  EXPECT_EQ(process.local_world_size, 2);
  EXPECT_EQ(process.main_address, "gpu007");
  EXPECT_GE(process.main_port, 10000);
  EXPECT_LT(process.main_port, 30000);
  EXPECT_EQ(read(kSlurm + Variables{{"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}, {"SLURM_NODEID", "0"}})
                .main_port,
            process.main_port);
}

TEST(ProcessFromEnvironment, ReadsASlurmStepOnOneMachine) {
  const auto process = read({{"SLURM_PROCID", "1"},
                             {"SLURM_LOCALID", "1"},
                             {"SLURM_STEP_ID", "2"},
                             {"SLURM_NTASKS", "2"},
                             {"SLURM_NTASKS_PER_NODE", "2"},
                             {"SLURM_JOB_ID", "9"},
                             {"SLURM_JOB_NODELIST", "login"}});
  EXPECT_EQ(process.local_world_size, 2);
  EXPECT_EQ(process.main_address, "127.0.0.1");
}

// A batch script and an interactive shell carry rank 0's variables, but nobody starts the other ranks.
TEST(ProcessFromEnvironment, RunsAloneInABatchScript) {
  const Variables batch{
      {"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_JOB_ID", "9"}};
  EXPECT_EQ(read(batch), Process{});
  EXPECT_EQ(read(batch + Variables{{"SLURM_STEP_ID", "4294967291"}}), Process{});
}

TEST(Slurm, FindsTheFirstHost) {
  EXPECT_EQ(config::first_host("alone"), "alone");
  EXPECT_EQ(config::first_host("a,b"), "a");
  EXPECT_EQ(config::first_host("node[003-005,9],login"), "node003");
  EXPECT_EQ(config::first_host("node[7,1-3]"), "node7");
  EXPECT_EQ(config::first_host("node[12]-ib"), "node12-ib");
  EXPECT_EQ(config::first_host("rack[1-2]node[03-09].local,x"), "rack1node03.local");
  for (const auto* bad : {"", ",a", "node[1-2", "node[]", "node]1", "node[[1]]"}) {
    EXPECT_THROW((void)config::first_host(bad), Error) << bad;
  }
}

TEST(Slurm, WritesOutTheTasksOfEachNode) {
  EXPECT_THAT(config::tasks_per_node("4"), ElementsAre(4));
  EXPECT_THAT(config::tasks_per_node("2(x3),1"), ElementsAre(2, 2, 2, 1));
  EXPECT_THAT(config::tasks_per_node("1,8(x2)"), ElementsAre(1, 8, 8));
  for (const auto* bad : {"", "0", "-1", "2(x", "2(x)", "2(x0)", "2(x3", "2,", "2;3", "x", "1(x99999999)"}) {
    EXPECT_THROW((void)config::tasks_per_node(bad), Error) << bad;
  }
}

// Settings
// ---------------------------------------------------------------------------------------------------------

TEST(LaunchSettings, ReadBackWhatTheyWrite) {
  for (const config::LaunchSettings settings :
       {config::LaunchSettings{}, config::LaunchSettings{.mixed_precision = Precision::kBf16},
        config::LaunchSettings{.mixed_precision = Precision::kNo, .cpu = true}}) {
    Variables variables;
    for (const auto& [name, value] : config::environment_of(settings)) variables[name] = value.value();
    const LauncherEnvironment environment(variables);
    EXPECT_EQ(config::settings_from_environment(), settings);
  }
}

TEST(LaunchSettings, RefuseAValueThatIsNoChoice) {
  for (const Variables& bad :
       {Variables{{"HASTEN_MIXED_PRECISION", "fp8"}}, Variables{{"HASTEN_CPU", "perhaps"}}}) {
    const LauncherEnvironment environment(bad);
    try {
      (void)config::settings_from_environment();
      FAIL() << bad.begin()->first;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr(bad.begin()->first), HasSubstr(bad.begin()->second)));
    }
  }
}

}  // namespace
}  // namespace hasten

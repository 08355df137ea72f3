#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>
#include <netinet/in.h>
#include <sstream>
#include <sys/socket.h>

#include <hasten/launcher/machine.h>

#include "launcher/child_process.h"
#include "support/temporary_folder.h"

namespace hasten {
namespace {

using test::ChildProcess;
using test::states_of;
using test::TemporaryFolder;
using test::wait_until;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

/// `hasten launch --num-processes 2 ... ` with `options` and the shell script as the program.
class Launch : public testing::Test {
 protected:
  /// `$0` of the script, and so part of the command line of everything that the script starts by name.
  std::string token_ = "hasten-test-" + std::to_string(getpid()) + "-" + std::to_string(++launches_);
  /// A duration that tells this test's `sleep` from any other one.
  std::string forever_ = "1000000." + std::to_string(getpid()) + std::to_string(launches_);

  [[nodiscard]] std::vector<std::string> command(const std::string& script,
                                                 std::vector<std::string> options) const {
    std::vector<std::string> words{HASTEN_CLI, "launch", "--num-processes", "2"};
    words.insert(words.end(), options.begin(), options.end());
    words.insert(words.end(), {"sh", "-c", script, token_});
    return words;
  }

  /// The states of the ranks' `sleep`s; shells that only name the duration in their script do not count.
  [[nodiscard]] std::string sleepers() const { return states_of(std::string("sleep") + '\0' + forever_); }

  [[nodiscard]] bool nothing_left() const {
    return wait_until([&] { return states_of(token_).empty() && states_of(forever_).empty(); },
                      std::chrono::seconds(5));
  }

 private:
  static inline int launches_ = 0;
};

/// Whether 127.0.0.1:`port` can be taken.
int listen_on(int port) {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  if (bind(socket, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 && listen(socket, 1) == 0)
    return socket;
  close(socket);
  return -1;
}

int port_of(int socket) {
  sockaddr_in address{};
  socklen_t size = sizeof(address);
  getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.sin_port);
}

/// NAME=VALUE lines by rank.
std::vector<std::map<std::string, std::string>> variables_of(const std::string& out) {
  std::vector<std::map<std::string, std::string>> ranks(2);
  std::istringstream lines(out);
  for (std::string line; std::getline(lines, line);) {
    const auto equals = line.find('=');
    if (equals == std::string::npos || line.size() < 4) continue;
    ranks.at(static_cast<std::size_t>(line[1] - '0'))[line.substr(4, equals - 4)] = line.substr(equals + 1);
  }
  return ranks;
}

TEST_F(Launch, GivesEveryRankTheContractVariables) {
  ChildProcess child(
      {HASTEN_CLI, "launch", "--num-processes", "2", "--cpu", "--mixed-precision", "bf16", "env"},
      {{"TORCHELASTIC_USE_AGENT_STORE", "True"}, {"HASTEN_STORE_FD", "77"}});
  ASSERT_EQ(child.finish(), 0) << child.error();
  const auto ranks = variables_of(child.out());
  for (int rank = 0; rank < 2; ++rank) {
    auto variables = ranks[static_cast<std::size_t>(rank)];
    EXPECT_EQ(variables["RANK"], std::to_string(rank));
    EXPECT_EQ(variables["LOCAL_RANK"], std::to_string(rank));
    EXPECT_EQ(variables["WORLD_SIZE"], "2");
    EXPECT_EQ(variables["LOCAL_WORLD_SIZE"], "2");
    EXPECT_EQ(variables["MASTER_ADDR"], "127.0.0.1");
    EXPECT_EQ(variables["MASTER_PORT"], ranks[0].at("MASTER_PORT"));
    EXPECT_EQ(variables["OMP_NUM_THREADS"], std::to_string(launcher::threads_per_process(2)));
    EXPECT_EQ(variables["HASTEN_MIXED_PRECISION"], "bf16");
    EXPECT_EQ(variables["HASTEN_CPU"], "1");
    EXPECT_EQ(variables.count("TORCHELASTIC_USE_AGENT_STORE"), 0U);
    EXPECT_EQ(variables.count("HASTEN_STORE_FD"), rank == 0 ? 1U : 0U);
  }
}

TEST_F(Launch, LeavesTheUsersNumberOfThreads) {
  ChildProcess child(command("echo threads=$OMP_NUM_THREADS", {}), {{"OMP_NUM_THREADS", "7"}});
  ASSERT_EQ(child.finish(), 0);
  for (const auto& variables : variables_of(child.out())) EXPECT_EQ(variables.at("threads"), "7");
}

TEST_F(Launch, OpensALoopbackSocketThatRankZeroInherits) {
  ChildProcess child({HASTEN_CLI, "launch", "--num_processes=3", HASTEN_RANK_PROGRAM, "store"});
  EXPECT_EQ(child.finish(), 0) << child.error();
  EXPECT_THAT(child.out(), HasSubstr("[1] met\n"));
  EXPECT_THAT(child.out(), HasSubstr("[2] met\n"));
}

TEST_F(Launch, UsesThePortItIsGiven) {
  const int socket = listen_on(0);
  const int port = port_of(socket);
  close(socket);
  ChildProcess child(command("echo port=$MASTER_PORT", {"--main_process_port", std::to_string(port)}));
  ASSERT_EQ(child.finish(), 0) << child.error();
  EXPECT_EQ(variables_of(child.out())[1]["port"], std::to_string(port));
}

TEST_F(Launch, RefusesAPortInUseAndRunsNothing) {
  const int socket = listen_on(0);
  const auto port = std::to_string(port_of(socket));
  ChildProcess child(command("echo ran", {"--main-process-port", port}));
  EXPECT_EQ(child.finish(), 1);
  EXPECT_THAT(child.error(), HasSubstr("port " + port + " of 127.0.0.1 is in use"));
  EXPECT_THAT(child.error(), HasSubstr("--main-process-port"));
  EXPECT_EQ(child.out(), "");
  close(socket);
}

// Output
// -----------------------------------------------------------------------------------------------------------

TEST_F(Launch, MarksEachLineWithItsRank) {
  ChildProcess child(command("echo out $RANK; echo err $RANK >&2; printf 'no end'", {}));
  ASSERT_EQ(child.finish(), 0);
  for (const std::string rank : {"0", "1"}) {
    EXPECT_THAT(child.out(), HasSubstr("[" + rank + "] out " + rank + "\n"));
    EXPECT_THAT(child.error(), HasSubstr("[" + rank + "] err " + rank + "\n"));
    EXPECT_THAT(child.out(), HasSubstr("[" + rank + "] no end\n"));
  }
  EXPECT_EQ(ChildProcess::count(child.out(), "\n"), 4);
}

TEST_F(Launch, ShowsOutputWhileTheRankRunsEvenAnUnfinishedLine) {
  ChildProcess child(command("[ $RANK = 1 ] || { echo line; printf working; read go; echo ' done'; }", {}));
  EXPECT_TRUE(child.wait_for("[0] line\n"));
  EXPECT_TRUE(child.wait_for("[0] working"));
  child.write_input("go\n");
  EXPECT_EQ(child.finish(), 0);
  EXPECT_EQ(child.out(), "[0] line\n[0] working done\n");
}

TEST_F(Launch, EndsAnUnfinishedLineBeforeAnotherRanksLine) {
  const TemporaryFolder folder;
  const auto gate = (folder / "gate").string();
  ChildProcess child(command("if [ $RANK = 0 ]; then printf half; else while [ ! -e " + gate +
                                 " ]; do sleep 0.01; done; echo whole; fi",
                             {}));
  EXPECT_TRUE(child.wait_for("[0] half"));
  std::ofstream{gate};
  EXPECT_EQ(child.finish(), 0);
  EXPECT_EQ(child.out(), "[0] half\n[1] whole\n");
}

TEST_F(Launch, HandsOnMoreThanAPipeHolds) {
  ChildProcess child(command("head -c 1000000 /dev/zero | tr '\\0' x; echo", {}));
  ASSERT_EQ(child.finish(), 0);
  EXPECT_EQ(ChildProcess::count(child.out(), "x"), 2'000'000);
}

TEST_F(Launch, LeavesTheOutputOfASingleProcessAsItIs) {
  ChildProcess child({HASTEN_CLI, "launch", "printf", "10%%\\r20%%"});
  EXPECT_EQ(child.finish(), 0);
  EXPECT_EQ(child.out(), "10%\r20%");
}

TEST_F(Launch, GivesStandardInputToRankZeroAlone) {
  ChildProcess child(command("echo $RANK got $(cat)", {}));
  child.write_input("text");
  child.close_input();
  EXPECT_EQ(child.finish(), 0);
  EXPECT_THAT(child.out(), HasSubstr("[0] 0 got text\n"));
  EXPECT_THAT(child.out(), HasSubstr("[1] 1 got\n"));
}

TEST_F(Launch, LeavesTheTerminalToRankZeroForItsProgressBar) {
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  ASSERT_GE(terminal, 0);
  grantpt(terminal);
  unlockpt(terminal);
  const std::string name = ptsname(terminal);
  // The shell connects the launcher's standard error to the terminal.
  const auto script = "test -t 2 && echo rank $RANK sees it >&2 || echo rank $RANK does not >&2";
  std::string line = "exec 2>" + name + "; exec \"$@\"";
  std::vector<std::string> words{"sh", "-c", line, "sh"};
  for (const auto& word : command(script, {})) words.push_back(word);
  const int keeps_open = open(name.c_str(), O_RDWR | O_NOCTTY | O_CLOEXEC);
  ChildProcess child(words, {{"NO_COLOR", "1"}});
  EXPECT_EQ(child.finish(), 0);
  std::array<char, 4096> buffer{};
  const auto size = read(terminal, buffer.data(), buffer.size());
  ASSERT_GT(size, 0);
  std::string shown(buffer.data(), static_cast<std::size_t>(size));
  if (ChildProcess::count(shown, "rank") < 2) {
    const auto more = read(terminal, buffer.data(), buffer.size());
    if (more > 0) shown.append(buffer.data(), static_cast<std::size_t>(more));
  }
  EXPECT_THAT(shown, HasSubstr("rank 0 sees it\r\n"));
  EXPECT_THAT(shown, Not(HasSubstr("[0]")));
  EXPECT_THAT(shown, HasSubstr("\r\x1b[K[1] rank 1 does not\r\n"));
  close(keeps_open);
  close(terminal);
}

TEST_F(Launch, EndsTheRanksWhenNobodyReadsTheOutputAnyMore) {
  ChildProcess child(command("while true; do echo line; done", {}));
  EXPECT_TRUE(child.wait_for("line"));
  child.close_output();
  EXPECT_EQ(child.finish(), 128 + SIGPIPE);
  EXPECT_TRUE(nothing_left());
}

// Failures
// ---------------------------------------------------------------------------------------------------------

struct Failure {
  std::string name{};
  std::string script{};  ///< what rank 1 does
  int code = 0;
  std::string text{};
};

class LaunchOfAFailingRank : public Launch, public testing::WithParamInterface<Failure> {};

TEST_P(LaunchOfAFailingRank, EndsTheOthersAndReturnsItsCode) {
  const auto& [name, script, code, text] = GetParam();
  ChildProcess child(command(
      "if [ $RANK = 1 ]; then echo first >&2; echo boom >&2; " + script + "; fi; sleep " + forever_, {}));
  EXPECT_EQ(child.finish(), code);
  EXPECT_THAT(child.error(), HasSubstr("rank 1 of 2 (sh, process "));
  EXPECT_THAT(child.error(), HasSubstr(text));
  EXPECT_THAT(child.error(), HasSubstr("Its last lines on standard error:\n    first\n    boom\n"));
  EXPECT_TRUE(nothing_left());
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, LaunchOfAFailingRank,
    testing::Values(Failure{"Code3", "exit 3", 3, "ended with exit code 3."},
                    Failure{"Code1", "exit 1", 1, "ended with exit code 1."},
                    Failure{"Code255", "exit 255", 255, "ended with exit code 255."},
                    Failure{"Killed", "kill -KILL $$", 137,
                            "was ended by signal 9 (Killed). The kernel kills"},
                    Failure{"Terminated", "kill -TERM $$", 143, "was ended by signal 15 (Terminated)."},
                    Failure{"Segfault", "kill -SEGV $$", 139, "was ended by signal 11 (Segmentation fault)."},
                    Failure{"Aborted", "kill -ABRT $$", 1, "was ended by signal 6 (Aborted)."}),
    [](const auto& info) { return info.param.name; });

TEST_F(Launch, ReportsAnExceptionThatNobodyCaught) {
  ChildProcess child({HASTEN_CLI, "launch", "--num-processes", "2", HASTEN_RANK_PROGRAM, "throw", token_});
  EXPECT_EQ(child.finish(), 1);
  EXPECT_THAT(child.error(), HasSubstr("[launch] rank 1 of 2 ("));
  EXPECT_THAT(child.error(), HasSubstr("\n      what():  boom\n"));
  EXPECT_TRUE(nothing_left());
}

TEST_F(Launch, ReturnsTheCodeOfTheRankThatFailedFirst) {
  ChildProcess child(command(
      "trap 'echo bye >&2; exit 7' TERM; [ $RANK = 1 ] && exit 3; sleep " + forever_ + " & wait", {}));
  EXPECT_EQ(child.finish(), 3);
  EXPECT_THAT(child.error(), HasSubstr("rank 1 of 2"));
  EXPECT_TRUE(nothing_left());
}

TEST_F(Launch, EndsAllWhenARankIsKilledFromOutside) {
  ChildProcess child(command("echo pid $RANK $$; exec sleep " + forever_, {}));
  ASSERT_TRUE(child.wait_for("pid", 2));
  const auto at = child.out().find("pid 1 ");
  kill(std::stoi(child.out().substr(at + 6)), SIGKILL);
  EXPECT_EQ(child.finish(), 137);
  EXPECT_THAT(child.error(), HasSubstr("rank 1 of 2"));
  EXPECT_TRUE(nothing_left());
}

TEST_F(Launch, KillsARankThatDoesNotEndWithinTheGrace) {
  ChildProcess child(
      command("trap '' TERM; [ $RANK = 1 ] && exit 3; sleep " + forever_, {"--grace-seconds", "0.2"}));
  EXPECT_EQ(child.finish(), 3);
  EXPECT_TRUE(nothing_left());
}

TEST_F(Launch, ShowsTheLastLinesOnly) {
  ChildProcess child(command("[ $RANK = 0 ] || { seq 1 1000 >&2; exit 4; }", {}));
  EXPECT_EQ(child.finish(), 4);
  const auto tail = child.error().substr(child.error().find("Its last lines"));
  EXPECT_EQ(ChildProcess::count(tail, "\n"), 21);
  EXPECT_THAT(tail, HasSubstr("standard error:\n    981\n"));
  EXPECT_THAT(tail, HasSubstr("\n    1000\n"));
}

TEST_F(Launch, ReportsTheFailureOfASingleProcessToo) {
  ChildProcess child({HASTEN_CLI, "launch", "sh", "-c", "echo boom >&2; exit 9"});
  EXPECT_EQ(child.finish(), 9);
  EXPECT_THAT(child.error(), HasSubstr("boom\n"));
  EXPECT_THAT(child.error(), HasSubstr("rank 0 of 1 (sh, process "));
}

// Signals and orphans
// ----------------------------------------------------------------------------------------------

class LaunchThatIsSent : public Launch, public testing::WithParamInterface<int> {};

TEST_P(LaunchThatIsSent, PassesTheSignalOnAndLeavesNothing) {
  ChildProcess child(command("echo port $MASTER_PORT; sleep " + forever_, {}));
  ASSERT_TRUE(child.wait_for("port", 2));
  ASSERT_TRUE(wait_until([&] { return sleepers().size() == 2; }));
  child.send(GetParam());
  EXPECT_EQ(child.finish(), 128 + GetParam());
  EXPECT_TRUE(nothing_left());
  EXPECT_THAT(child.error(), Not(HasSubstr("error")));
  const int socket = listen_on(std::stoi(child.out().substr(child.out().find("port ") + 5)));
  EXPECT_GE(socket, 0) << "the port is still taken";
  close(socket);
}

INSTANTIATE_TEST_SUITE_P(Signal, LaunchThatIsSent, testing::Values(SIGTERM, SIGINT, SIGHUP),
                         [](const auto& info) { return std::string(sigabbrev_np(info.param)); });

TEST_F(Launch, LetsRanksSaveAfterASignal) {
  ChildProcess child(command(
      "trap 'sleep 0.2; echo saved; exit 143' TERM; echo ready; while true; do sleep 0.01; done", {}));
  ASSERT_TRUE(child.wait_for("ready", 2));
  child.send(SIGTERM);
  EXPECT_EQ(child.finish(), 143);
  EXPECT_EQ(ChildProcess::count(child.out(), "saved"), 2);
  EXPECT_THAT(child.error(), Not(HasSubstr("error")));
}

TEST_F(Launch, ReturnsZeroWhenAllRanksFinishInSpiteOfTheSignal) {
  ChildProcess child(command("trap 'exit 0' TERM; echo ready; while true; do sleep 0.01; done", {}));
  ASSERT_TRUE(child.wait_for("ready", 2));
  child.send(SIGTERM);
  EXPECT_EQ(child.finish(), 0);
}

TEST_F(Launch, KillsRanksThatIgnoreTheSignalAfterTheGrace) {
  ChildProcess child(command("trap '' TERM; echo ready; sleep " + forever_, {"--grace-seconds", "0.2"}));
  ASSERT_TRUE(child.wait_for("ready", 2));
  child.send(SIGTERM);
  EXPECT_EQ(child.finish(), 143);
  EXPECT_TRUE(nothing_left());
}

TEST_F(Launch, KillsAtTheSecondInterrupt) {
  ChildProcess child(command("trap '' INT; echo ready; sleep " + forever_, {}));
  ASSERT_TRUE(child.wait_for("ready", 2));
  child.send(SIGINT);
  ASSERT_TRUE(child.wait_for("once more"));
  ASSERT_TRUE(wait_until([&] { return sleepers().size() == 2; }));
  child.send(SIGINT);
  EXPECT_EQ(child.finish(), 130);
  EXPECT_TRUE(nothing_left());
}

TEST_F(Launch, LeavesNothingWhenItIsKilledItself) {
  // The rank's own child does not get the kernel's parent-death signal, and neither listens to SIGTERM.
  ChildProcess child(
      command("trap '' TERM HUP INT; echo ready; sleep " + forever_ + "; echo not reached", {}));
  ASSERT_TRUE(child.wait_for("ready", 2));
  ASSERT_TRUE(wait_until([&] { return sleepers().size() == 2; }));
  child.send(SIGKILL);
  EXPECT_EQ(child.finish(), -SIGKILL);
  EXPECT_TRUE(nothing_left());
}

TEST_F(Launch, EndsWhatASuccessfulRankLeavesBehind) {
  ChildProcess child(command("sleep " + forever_ + " & exit 0", {}));
  EXPECT_EQ(child.finish(), 0);
  EXPECT_TRUE(nothing_left());
}

TEST_F(Launch, KeepsIgnoringASignalThatNohupSwitchedOff) {
  std::vector<std::string> words{"sh", "-c", "trap '' HUP; exec \"$@\"", "sh"};
  for (const auto& word : command("echo ready; [ $RANK = 1 ] || read go; echo finished", {}))
    words.push_back(word);
  ChildProcess child(words);
  ASSERT_TRUE(child.wait_for("ready", 2));
  child.send(SIGHUP);
  child.write_input("go\n");
  EXPECT_EQ(child.finish(), 0);
  EXPECT_EQ(ChildProcess::count(child.out(), "finished"), 2);
}

TEST_F(Launch, StopsAndContinuesTheRanksWithTheLauncher) {
  ChildProcess child(command("echo ready; [ $RANK = 1 ] || read go; exec sleep " + forever_, {}));
  ASSERT_TRUE(child.wait_for("ready", 2));
  child.write_input("go\n");
  ASSERT_TRUE(wait_until([&] { return sleepers().size() == 2; }));
  child.send(SIGTSTP);
  EXPECT_TRUE(wait_until([&] { return sleepers() == "TT"; }));
  EXPECT_TRUE(wait_until([&] { return test::process_state("/proc/" + std::to_string(child.pid())) == 'T'; }));
  child.send(SIGCONT);
  EXPECT_TRUE(wait_until([&] { return sleepers() == "SS"; }));
  child.send(SIGTERM);
  EXPECT_EQ(child.finish(), 143);
}

// The command line
// -------------------------------------------------------------------------------------------------

TEST_F(Launch, LeavesTheProgramsArgumentsUntouched) {
  ChildProcess child({HASTEN_CLI, "launch", "--num_processes", "1", "printf", "<%s>", "--num-processes", "3",
                      "--", "--mixed_precision=fp16", "", "a b", "--help", "-h", "launch"});
  EXPECT_EQ(child.finish(), 0) << child.error();
  EXPECT_EQ(child.out(), "<--num-processes><3><--><--mixed_precision=fp16><><a b><--help><-h><launch>");
}

TEST_F(Launch, TakesAProgramBehindTwoDashesAndOneNamedAsASubcommand) {
  ChildProcess dashes({HASTEN_CLI, "launch", "--cpu", "--", "printf", "%s", "--"});
  EXPECT_EQ(dashes.finish(), 0) << dashes.error();
  EXPECT_EQ(dashes.out(), "--");
  ChildProcess env({HASTEN_CLI, "launch", "env", "printf", "ran"});
  EXPECT_EQ(env.finish(), 0) << env.error();
  EXPECT_EQ(env.out(), "ran");
}

struct Refusal {
  std::string name{};
  std::vector<std::string> words{};
  int code = 0;
  std::string text{};
};

class CommandLine : public testing::TestWithParam<Refusal> {};

TEST_P(CommandLine, IsRefusedWithOneClearMessage) {
  const auto& [name, words, code, text] = GetParam();
  std::vector<std::string> command{HASTEN_CLI};
  command.insert(command.end(), words.begin(), words.end());
  ChildProcess child(command);
  EXPECT_EQ(child.finish(), code);
  EXPECT_EQ(child.out(), "");
  EXPECT_THAT(child.error(), testing::StartsWith("hasten: error: ["));
  EXPECT_THAT(child.error(), HasSubstr(text));
  EXPECT_EQ(ChildProcess::count(child.error(), "\n"), 1);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, CommandLine,
    testing::Values(
        Refusal{"NoSubcommand", {}, 2, "--help"}, Refusal{"UnknownSubcommand", {"lunch"}, 2, "'lunch'"},
        Refusal{"NoProgram", {"launch", "--num-processes", "2"}, 2, "no program was named"},
        Refusal{"UnknownOption", {"launch", "--num-proceses", "2", "true"}, 2, "--num-proceses"},
        Refusal{"NoValue", {"launch", "--num-processes"}, 2, "--num-processes"},
        Refusal{"NoNumber", {"launch", "--num-processes", "two", "true"}, 2, "--num-processes"},
        Refusal{"NoProcesses", {"launch", "--num-processes", "0", "true"}, 2, "is 0, but must be at least 1"},
        Refusal{"NegativeProcesses",
                {"launch", "--num-processes=-2", "true"},
                2,
                "is -2, but must be at least 1"},
        Refusal{"TooManyProcesses", {"launch", "--num-processes", "99999", "true"}, 2, "--oversubscribe"},
        Refusal{"Precision", {"launch", "--mixed-precision", "fp8", "true"}, 2, "no, bf16, fp16"},
        Refusal{"Port", {"launch", "--main-process-port", "70000", "true"}, 2, "70000"},
        Refusal{"Grace", {"launch", "--grace-seconds", "-1", "true"}, 2, "--grace-seconds"},
        Refusal{"GraceNotANumber", {"launch", "--grace-seconds", "nan", "true"}, 2, "--grace-seconds"},
        Refusal{"MissingProgram", {"launch", "no-such-program"}, 127, "no-such-program"},
        Refusal{"MissingPath", {"launch", "./no/such/program"}, 127, "./no/such/program"},
        Refusal{"NotExecutable", {"launch", "/etc/passwd"}, 126, "chmod +x /etc/passwd"},
        Refusal{"Folder", {"launch", "/etc"}, 126, "is a folder"}),
    [](const auto& info) { return info.param.name; });

TEST(CommandLine, NamesTheRankThatTheKernelCannotExecute) {
  const TemporaryFolder folder;
  const auto path = folder / "program";
  std::ofstream(path) << "#!/no/such/interpreter\n";
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  ChildProcess child({HASTEN_CLI, "launch", path.string()});
  EXPECT_EQ(child.finish(), 126);
  EXPECT_THAT(child.error(),
              HasSubstr("could not execute '" + path.string() + "': No such file or directory"));
}

TEST(CommandLine, AllowsManyProcessesWhenTold) {
  const auto count = std::to_string(4 * launcher::this_machine().cores + 1);
  ChildProcess child({HASTEN_CLI, "launch", "--num-processes", count, "--oversubscribe", "echo", "ran"});
  EXPECT_EQ(child.finish(), 0) << child.error();
  EXPECT_EQ(ChildProcess::count(child.out(), "ran"), std::stoi(count));
}

TEST(CommandLine, ShowsHelpForEveryOption) {
  ChildProcess child({HASTEN_CLI, "launch", "--help"});
  EXPECT_EQ(child.finish(), 0);
  for (const auto* option : {"--num-processes", "--mixed-precision", "--cpu", "--main-process-port",
                             "--grace-seconds", "--oversubscribe", "PROGRAM [ARGS...]", "Exit codes"}) {
    EXPECT_THAT(child.out(), HasSubstr(option));
  }
}

TEST(CommandLine, ShowsTheEnvironmentAndWhatIsWrongInIt) {
  ChildProcess good({HASTEN_CLI, "env"}, {{"RANK", "1"},
                                          {"WORLD_SIZE", "2"},
                                          {"MASTER_ADDR", "127.0.0.1"},
                                          {"MASTER_PORT", "29500"},
                                          {"HASTEN_MIXED_PRECISION", "bf16"}});
  EXPECT_EQ(good.finish(), 0);
  EXPECT_THAT(good.out(), HasSubstr("rank 1 of 2, local rank 1 of 2, meeting at 127.0.0.1:29500"));
  EXPECT_THAT(good.out(), HasSubstr("bf16"));
  ChildProcess bad(
      {HASTEN_CLI, "env"},
      {{"RANK", "5"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29500"}});
  EXPECT_EQ(bad.finish(), 0);
  EXPECT_THAT(bad.out(), HasSubstr("rank 5 of 2"));
}

#ifdef HASTEN_FASHION
// The example that the demo runs, with data that is not what it should be.
class BadData : public testing::Test {
 protected:
  /// What the program says when two ranks of it are started in an empty folder.
  std::string run(const std::filesystem::path& data) {
    const TemporaryFolder folder;
    ChildProcess child({"sh", "-c", "cd \"$0\" && exec \"$@\"", folder.path().string(), HASTEN_CLI, "launch",
                        "--num-processes", "2", HASTEN_FASHION, data.string()});
    EXPECT_EQ(child.finish(), 1);
    EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << "files were left";
    EXPECT_THAT(child.error(), Not(HasSubstr("frame #")));
    return child.error();
  }
};

TEST_F(BadData, ThatIsMissingIsNamedWithARemedy) {
  EXPECT_THAT(run("/no/such/folder"),
              AllOf(HasSubstr("/no/such/folder"), HasSubstr("dataset-fashion-mnist")));
}

TEST_F(BadData, ThatIsCutIsNamed) {
  const TemporaryFolder data;
  for (const char* name : {"train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz",
                           "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"})
    std::filesystem::copy(std::filesystem::path("/usr/share/datasets/fashion-mnist") / name, data / name);
  std::filesystem::resize_file(data / "train-labels-idx1-ubyte.gz", 5000);
  EXPECT_THAT(run(data.path()), HasSubstr((data / "train-labels-idx1-ubyte.gz").string()));
}
#endif

// LibTorch's start-up alone takes longer than this program may.
TEST(CommandLine, NeedsNoLibTorch) {
  ChildProcess child({HASTEN_CLI, "--help"}, {{"LD_TRACE_LOADED_OBJECTS", "1"}});
  EXPECT_EQ(child.finish(), 0);
  EXPECT_THAT(child.out(), HasSubstr("libc.so"));
  EXPECT_THAT(child.out(), Not(HasSubstr("torch")));
  EXPECT_THAT(child.out(), Not(HasSubstr("libc10")));
}

}  // namespace
}  // namespace hasten

#include <filesystem>
#include <gtest/gtest.h>
#include <sched.h>
#include <string>

#include <hasten/base/error.h>
#include <hasten/base/files.h>
#include <hasten/launcher/machine.h>

#include "launcher/cgroup.h"
#include "support/temporary_folder.h"

namespace hasten {
namespace {

using launcher::cgroup_limits;
using test::TemporaryFolder;

/// A machine's /proc and /sys made of files.
class MadeUpMachine {
 public:
  explicit MadeUpMachine(const std::string& groups) { write("proc/self/cgroup", groups); }

  MadeUpMachine& write(const std::string& path, const std::string& content) {
    std::filesystem::create_directories((folder_ / path).parent_path());
    files::write_atomically(folder_ / path, content);
    return *this;
  }
  [[nodiscard]] launcher::CgroupLimits limits() const { return cgroup_limits(folder_.path()); }

 private:
  TemporaryFolder folder_{};
};

TEST(Cgroup, LimitsNothingWhereThereIsNone) {
  const TemporaryFolder empty;
  EXPECT_FALSE(cgroup_limits(empty.path()).cores);
  EXPECT_FALSE(cgroup_limits(empty.path()).memory);
}

TEST(Cgroup, ReadsVersionTwoAndTakesTheTightestOfAllGroupsAbove) {
  MadeUpMachine machine("0::/slice/job/step\n");
  machine.write("sys/fs/cgroup/slice/job/step/cpu.max", "max 100000\n");
  machine.write("sys/fs/cgroup/slice/job/step/memory.max", "3000000000\n");
  EXPECT_FALSE(machine.limits().cores);
  machine.write("sys/fs/cgroup/slice/job/cpu.max", "250000 100000\n");
  machine.write("sys/fs/cgroup/slice/cpu.max", "800000 100000\n");
  machine.write("sys/fs/cgroup/slice/memory.max", "2000000000\n");
  EXPECT_DOUBLE_EQ(machine.limits().cores.value(), 2.5);
  EXPECT_EQ(machine.limits().memory, 2000000000U);
}

TEST(Cgroup, ReadsVersionOne) {
  MadeUpMachine machine("5:memory:/a/b\n3:cpu,cpuacct:/a\n1:name=systemd:/x\n0::/\n");
  machine.write("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "-1\n");
  machine.write("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n");
  machine.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_FALSE(machine.limits().cores);
  EXPECT_FALSE(machine.limits().memory);
  machine.write("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "150000\n");
  machine.write("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "1048576\n");
  EXPECT_DOUBLE_EQ(machine.limits().cores.value(), 1.5);
  EXPECT_EQ(machine.limits().memory, 1048576U);
}

// Inside a container the path is the host's, and only the mount's top is visible.
TEST(Cgroup, ReadsTheTopOfTheMountWhenThePathIsTheHosts) {
  MadeUpMachine machine("0::/host/only/path\n");
  machine.write("sys/fs/cgroup/cpu.max", "400000 100000\n");
  EXPECT_DOUBLE_EQ(machine.limits().cores.value(), 4);
}

TEST(Cgroup, IgnoresFilesThatHoldNoNumbers) {
  MadeUpMachine machine("0::/\nnonsense\n::\n");
  machine.write("sys/fs/cgroup/cpu.max", "much\n").write("sys/fs/cgroup/memory.max", "\n");
  EXPECT_FALSE(machine.limits().cores);
  EXPECT_FALSE(machine.limits().memory);
}

TEST(Machine, CountsTheCoresThatThisProcessMayUse) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  int first = 0;
  while (CPU_ISSET(first, &before) == 0) ++first;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(launcher::this_machine().cores, 1);
  EXPECT_EQ(launcher::threads_per_process(4), 1);
  sched_setaffinity(0, sizeof(before), &before);
  EXPECT_LE(launcher::this_machine().cores, CPU_COUNT(&before));
}

TEST(Machine, KnowsItsMemory) {
  const auto machine = launcher::this_machine();
  EXPECT_GT(machine.memory_total, 1U << 26);
  EXPECT_GT(machine.memory_available, 0U);
  EXPECT_LE(machine.memory_available, machine.memory_total);
}

TEST(Machine, RefusesCountsThatMakeNoSense) {
  const int most = 4 * launcher::this_machine().cores;
  EXPECT_NO_THROW(launcher::require_sensible_count(most, false));
  EXPECT_NO_THROW(launcher::require_sensible_count(most + 1, true));
  EXPECT_THROW(launcher::require_sensible_count(most + 1, false), Error);
  EXPECT_THROW(launcher::require_sensible_count(0, true), Error);
  EXPECT_THROW(launcher::require_sensible_count(-3, true), Error);
}

}  // namespace
}  // namespace hasten

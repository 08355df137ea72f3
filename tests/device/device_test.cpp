#include <atomic>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <c10/core/CPUAllocator.h>

#include <hasten/base/error.h>
#include <hasten/device/device.h>

namespace hasten {
namespace {

TEST(Device, ChoosesTheCpuWhenAsked) {
  EXPECT_TRUE(device::choose(/*cpu=*/true, 3).is_cpu());
}

TEST(Device, SaysWhyAKindCannotBeUsed) {
  for (const device::Backend* backend : device::backends()) {
    EXPECT_EQ(backend->count() == 0, !backend->unavailable_because().empty()) << backend->name();
  }
}

TEST(Device, RefusesAKindItDoesNotKnow) {
  EXPECT_THROW((void)device::backend(c10::DeviceType::MPS), Error);
}

TEST(Device, RestoresTheRandomState) {
  device::seed(3);
  const at::Tensor state = device::random_state(at::kCPU);
  const at::Tensor first = at::rand({5});
  const at::Tensor second = at::rand({5});
  EXPECT_FALSE(first.equal(second));
  device::set_random_state(at::kCPU, state);
  EXPECT_TRUE(first.equal(at::rand({5})));
  device::seed(3);
  EXPECT_TRUE(first.equal(at::rand({5})));
}

TEST(Device, LeavesATensorThatIsThere) {
  const at::Tensor tensor = at::ones({2});
  EXPECT_TRUE(device::copy_to(tensor, at::kCPU, true).is_same(tensor));
}

TEST(Device, MeasuresMemory) {
  const device::Memory memory = device::backend(at::kCPU).memory(0);
  EXPECT_GT(memory.used, 1 << 20);
  EXPECT_GE(memory.peak, memory.used / 2);
  EXPECT_GT(memory.total, memory.used);
}

// The sanitizers bring allocators of their own.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
class KeptMemory : public testing::Test {
 protected:
  KeptMemory() { device::backend(at::kCPU).keep_freed_memory(); }

  static constexpr std::int64_t kMiB = 1 << 20;
  static at::Tensor make(std::int64_t bytes) { return at::ones({bytes}, at::kByte); }
  static std::int64_t resident() { return device::backend(at::kCPU).memory(0).used; }
};

TEST_F(KeptMemory, IsUsedAgain) {
  const auto page_faults = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt;
  };
  make(64 * kMiB);
  const auto before = page_faults();
  // A block a little smaller than one that is kept fits into it.
  for (int i = 0; i < 5; ++i) EXPECT_EQ(make(64 * kMiB - i * kMiB)[5].item<int>(), 1);
  // Given back each time, they would be 16,384 pages of 4 KiB each time.
  EXPECT_LT(page_faults() - before, 1000);
}

TEST_F(KeptMemory, IsAtMostAQuarterMoreThanWasInUse) {
  make(64 * kMiB);
  const std::int64_t before = resident();
  // Each size fits into no block that is kept, and would be kept beside the others.
  for (std::int64_t size = 2; size < 64; size = size * 3 / 2 + 1) make(size * kMiB);
  EXPECT_LE(resident() - before, 17 * kMiB);
}

TEST_F(KeptMemory, SurvivesManyThreads) {
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread)
    threads.emplace_back([thread] {
      for (int i = 0; i < 200; ++i) {
        at::Tensor tensor = at::full({kMiB + i * 4096}, thread, at::kByte);
        ASSERT_EQ(tensor.min().item<int>(), thread);
        ASSERT_EQ(tensor.max().item<int>(), thread);
        tensor.resize_({2 * kMiB + i});  // moves what it holds
        ASSERT_EQ(tensor[kMiB - 1].item<int>(), thread);
      }
    });
  for (auto& thread : threads) thread.join();
}

TEST_F(KeptMemory, IsFreeToUseInAForkedProcess) {
  std::atomic<bool> stop = false;
  std::thread busy([&] {
    while (!stop) make(2 * kMiB);
  });
  for (int i = 0; i < 20; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(20);  // a lock that was held while the process was forked would stay so for ever
      const c10::DataPtr data = c10::GetCPUAllocator()->allocate(2 * kMiB);
      ::_exit(data.get() == nullptr ? 1 : 0);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  stop = true;
  busy.join();
}
#endif

}  // namespace
}  // namespace hasten

#include <gtest/gtest.h>

#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>

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

}  // namespace
}  // namespace hasten

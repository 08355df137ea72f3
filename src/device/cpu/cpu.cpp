#include <cstdio>
#include <malloc.h>
#include <sys/auxv.h>
#include <sys/resource.h>
#include <unistd.h>

#include "device/backends.h"
#include "device/cpu/keeping_allocator.h"

namespace hasten::device {
namespace {

class Cpu final : public Backend {
 public:
  c10::DeviceType type() const override { return c10::DeviceType::CPU; }
  std::string_view name() const override { return "cpu"; }
  int count() const override { return 1; }
  std::string unavailable_because() const override { return {}; }
  void select(int) const override {}
  void synchronize(int) const override {}
  void step_boundary() const override {}
  bool wants_pinned_memory() const override { return false; }
  bool has_fast_bf16() const override {
#if defined(__x86_64__)
    // Every processor with AMX has AVX-512 BF16 as well.
    return __builtin_cpu_supports("avx512bf16") != 0;
#elif defined(__aarch64__)
    constexpr unsigned long kHasBf16 = 1UL << 14;  // HWCAP2_BF16 of Linux's <asm/hwcap.h>
    return (getauxval(AT_HWCAP2) & kHasBf16) != 0;
#else
    return false;
#endif
  }
  std::string_view collectives() const override { return "gloo"; }

  void keep_freed_memory() const override { device::keep_freed_memory(); }
  void release_memory() const override {
    release_kept_memory();
    ::malloc_trim(0);
  }

  Memory memory(int) const override {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    // The second field of statm is the resident set, in pages.
    const std::string statm = read_proc("/proc/self/statm");
    const auto space = statm.find(' ');
    const std::int64_t page = sysconf(_SC_PAGESIZE);
    return {.used = space == std::string::npos ? 0 : std::stoll(statm.substr(space + 1)) * page,
            .peak = usage.ru_maxrss * std::int64_t{1024},
            .total = sysconf(_SC_PHYS_PAGES) * page};
  }

 private:
  // Files of /proc have no size, so they are read as a stream.
  static std::string read_proc(const char* path) {
    std::string content;
    if (FILE* file = std::fopen(path, "re")) {
      char buffer[256];
      const std::size_t count = std::fread(buffer, 1, sizeof(buffer), file);
      content.assign(buffer, count);
      std::fclose(file);
    }
    return content;
  }
};

}  // namespace

std::unique_ptr<Backend> make_cpu() {
  return std::make_unique<Cpu>();
}

}  // namespace hasten::device

#include "device/cpu/keeping_allocator.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <pthread.h>
#include <sys/mman.h>
#include <unordered_map>
#include <vector>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

namespace hasten::device {
namespace {

/// Smaller blocks stay in the C library's heap, which does not give them back.
constexpr std::size_t kLeast = 1 << 20;
constexpr std::size_t kPage = 4096;

struct Block {
  void* data;
  std::size_t size;
};

/// Null when the system has no more.
void* map_block(std::size_t size) {
  void* const mapped = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return mapped == MAP_FAILED ? nullptr : mapped;
}

class KeepingAllocator final : public c10::Allocator {
 public:
  explicit KeepingAllocator(c10::Allocator& small) : small_(small) {}

  c10::DataPtr allocate(std::size_t bytes) override {
    void* data = bytes >= kLeast ? take((bytes + kPage - 1) / kPage * kPage) : nullptr;
    if (data == nullptr) data = small_.raw_allocate(bytes);  // which throws when there is no memory left
    return {data, data, &give_back, c10::kCPU};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }

  void copy_data(void* destination, const void* source, std::size_t count) const override {
    default_copy_data(destination, source, count);
  }

  std::mutex& mutex() { return mutex_; }

  void release() {
    const std::lock_guard lock(mutex_);
    for (const Block& block : kept_) ::munmap(block.data, block.size);
    kept_.clear();
    kept_bytes_ = 0;
    most_in_use_ = in_use_bytes_;
  }

 private:
  void* take(std::size_t size) {
    const std::lock_guard lock(mutex_);
    auto best = kept_.end();
    for (auto block = kept_.begin(); block != kept_.end(); ++block)
      if (block->size >= size && block->size <= size + size / 8 &&
          (best == kept_.end() || block->size <= best->size))
        best = block;
    Block taken{nullptr, size};
    if (best != kept_.end()) {
      taken = *best;
      kept_bytes_ -= taken.size;
      kept_.erase(best);
    } else {
      make_room(size);
      taken.data = map_block(size);
      if (taken.data == nullptr) return nullptr;
    }
    in_use_.emplace(taken.data, taken.size);
    in_use_bytes_ += taken.size;
    most_in_use_ = std::max(most_in_use_, in_use_bytes_);
    return taken.data;
  }

  /// Gives the blocks that were kept longest back to the system, as far as a new one needs it. The quarter
  /// lets a step find all of its blocks though their sizes do not fit into one another.
  void make_room(std::size_t size) {
    const std::size_t limit = std::max(most_in_use_ + most_in_use_ / 4, in_use_bytes_ + size);
    auto block = kept_.begin();
    for (; block != kept_.end() && in_use_bytes_ + kept_bytes_ + size > limit; ++block) {
      ::munmap(block->data, block->size);
      kept_bytes_ -= block->size;
    }
    kept_.erase(kept_.begin(), block);
  }

  /// Returns whether it was a block of this allocator.
  bool keep(void* data) {
    const std::lock_guard lock(mutex_);
    const auto found = in_use_.find(data);
    if (found == in_use_.end()) return false;
    kept_.push_back({data, found->second});
    kept_bytes_ += found->second;
    in_use_bytes_ -= found->second;
    in_use_.erase(found);
    return true;
  }

  static void give_back(void* data);

  c10::Allocator& small_;
  std::mutex mutex_;
  std::unordered_map<void*, std::size_t> in_use_;
  std::vector<Block> kept_;  // the longest kept first
  std::size_t in_use_bytes_ = 0;
  std::size_t kept_bytes_ = 0;
  std::size_t most_in_use_ = 0;
};

/// Lives as long as the process: tensors may outlive every other object.
KeepingAllocator& allocator() {
  static auto* const kAllocator = [] {
    auto* const made = new KeepingAllocator(*c10::GetDefaultCPUAllocator());
    // A process forked while another thread is in here must find the lock free.
    ::pthread_atfork([] { allocator().mutex().lock(); }, [] { allocator().mutex().unlock(); },
                     [] { allocator().mutex().unlock(); });
    return made;
  }();
  return *kAllocator;
}

void KeepingAllocator::give_back(void* data) {
  KeepingAllocator& self = allocator();
  // A block of this allocator begins with a page; one of the C library's seldom does.
  if (reinterpret_cast<std::uintptr_t>(data) % kPage != 0 || !self.keep(data))
    self.small_.raw_deallocate(data);
}

}  // namespace

void release_kept_memory() {
  allocator().release();
}

void keep_freed_memory() {
// The sanitizers' allocators see more when they see every tensor.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  static std::once_flag once;
  std::call_once(once, [] {
    if (c10::GetCPUAllocator() == c10::GetDefaultCPUAllocator()) c10::SetCPUAllocator(&allocator());
  });
#endif
}

}  // namespace hasten::device

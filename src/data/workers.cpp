#include "data/workers.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include <c10/core/GradMode.h>

#include "data/thread.h"

namespace hasten::data {

Workers::Workers(int count, std::size_t slots, Make make) : make_(std::move(make)), slots_(slots) {
  threads_.reserve(static_cast<std::size_t>(count));
  try {
    for (int worker = 0; worker < count; ++worker) threads_.emplace_back([this, worker] { run(worker); });
  } catch (const std::system_error& error) {
    join();
    fail(ErrorCode::kSystem, "data::Loader", "cannot start worker ", threads_.size(), " of ", count, ": ",
         error.what(), ". Ask for fewer workers.");
  }
}

Workers::~Workers() {
  join();
}

void Workers::join() noexcept {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Workers::start(std::int64_t begin, std::int64_t end) {
  {
    const std::lock_guard lock(mutex_);
    next_ = released_ = begin;
    end_ = end;
    std::fill(slots_.begin(), slots_.end(), Slot());
  }
  work_.notify_all();
}

std::size_t Workers::wait(std::int64_t batch) {
  const std::size_t slot = slot_of(batch);
  std::unique_lock lock(mutex_);
  ready_.wait(lock, [&] { return slots_[slot].ready; });
  if (const auto& fault = slots_[slot].fault) throw Error(fault->code, "data::Loader", fault->text);
  return slot;
}

void Workers::release(std::int64_t batch) {
  {
    const std::lock_guard lock(mutex_);
    slots_[slot_of(batch)] = Slot();
    released_ = batch + 1;
  }
  work_.notify_one();
}

void Workers::cancel() {
  std::unique_lock lock(mutex_);
  end_ = next_;
  ready_.wait(lock, [&] { return making_ == 0; });
}

void Workers::run(int worker) {
  enter_worker_thread(worker);
  const c10::NoGradGuard no_grad;
  std::unique_lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [&] { return stopping_ || has_work(); });
    if (stopping_) return;
    const std::int64_t batch = next_++;
    const std::size_t slot = slot_of(batch);
    ++making_;
    lock.unlock();
    std::optional<Fault> fault = make_(worker, batch, slot);
    lock.lock();
    --making_;
    slots_[slot] = {.ready = true, .fault = std::move(fault)};
    // Wakes the loop, which is the only one that waits: for this batch, or for the making to end.
    ready_.notify_one();
  }
}

}  // namespace hasten::data

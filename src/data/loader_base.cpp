#include <algorithm>
#include <chrono>
#include <optional>
#include <sstream>
#include <utility>

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <hasten/base/error.h>
#include <hasten/data/loader.h>
#include <hasten/data/loader_base.h>
#include <hasten/data/permutation.h>
#include <hasten/data/shard.h>
#include <hasten/device/device.h>

#include "data/workers.h"

namespace hasten::data {
namespace {

using Clock = std::chrono::steady_clock;

void check(const LoaderOptions& options) {
  constexpr int kMostWorkers = 1024;
  require(options.batch_size >= 1, ErrorCode::kInvalidArgument, "data::Loader", "batch_size is ",
          options.batch_size, ". Give at least 1.");
  require(options.workers >= 0 && options.workers <= kMostWorkers, ErrorCode::kInvalidArgument,
          "data::Loader", "workers is ", options.workers, ". Give a number from 0 to ", kMostWorkers, ".");
  require(options.prefetch >= 1, ErrorCode::kInvalidArgument, "data::Loader", "prefetch is ",
          options.prefetch, ". Give at least 1.");
}

/// "sample 7" where one sample failed, otherwise "samples 7, 2, 9, ... (32 in all)".
std::string describe(Indices indices, std::size_t at) {
  if (at < indices.size()) return concat("sample ", indices[at]);
  constexpr std::size_t kMostShown = 4;
  std::ostringstream text;
  text << "samples ";
  for (std::size_t i = 0; i < std::min(kMostShown, indices.size()); ++i)
    text << (i > 0 ? ", " : "") << indices[i];
  if (indices.size() > kMostShown) text << ", ... (" << indices.size() << " in all)";
  return text.str();
}

/// The exception being handled, without LibTorch's list of stack frames.
Fault current_fault() {
  try {
    throw;
  } catch (const Error& error) {
    return {error.code(), error.what()};
  } catch (const c10::Error& error) {
    return {ErrorCode::kInvalidArgument, error.what_without_backtrace()};
  } catch (const std::bad_alloc&) {
    return {ErrorCode::kSystem, "out of memory"};
  } catch (const std::exception& error) {
    return {ErrorCode::kInvalidArgument, error.what()};
  } catch (...) {
    return {ErrorCode::kInvalidArgument, "an exception that is no std::exception"};
  }
}

}  // namespace

namespace detail {

at::Tensor pin(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().is_cpu() && !tensor.is_pinned() ? tensor.pin_memory() : tensor;
}

void fail_copies(int workers) {
  fail(ErrorCode::kInvalidArgument, "data::Loader", "the dataset cannot be read by ", workers,
       " workers: its reading is not const and it cannot be copied. Make get or get_batch const, or set "
       "workers to 1.");
}

}  // namespace detail

/// All that a loader remembers.
struct LoaderBase::Pass {
  Pass(std::int64_t samples, const LoaderOptions& given)
      : options(given), shard(ShardOptions{.size = samples}) {}

  LoaderOptions options;
  Shard shard;
  std::int64_t epoch = 0;
  std::int64_t position = 0;  // batches of the epoch given to loops
  bool running = false;
  std::uint64_t number = 0;  // of the pass that runs, or ran last
  std::size_t slot = kNoSlot;

  Permutation order;
  std::optional<std::pair<std::uint64_t, std::int64_t>> order_of;  // the seed and epoch of `order`
  std::vector<std::int64_t> indices;                               // of a batch made in the loop's thread

  std::optional<at::Device> device;
  bool pin = false;
  std::shared_ptr<LoaderObserver> observer;
  Clock::duration waited{};

  std::vector<std::vector<std::int64_t>> worker_indices;
  std::unique_ptr<Workers> workers;

  [[nodiscard]] std::int64_t consumed() const {
    const ShardOptions& cut = shard.options();
    return std::min(cut.first + position * shard.global_batch_size(), cut.size);
  }

  [[nodiscard]] BatchContext context() const { return {.seed = options.seed, .epoch = epoch}; }

  void shuffle() {
    const std::pair now(options.seed, epoch);
    if (!options.shuffle || order_of == now) return;
    order = Permutation(shard.options().size, options.seed, epoch);
    order_of = now;
  }

  void find_samples(std::int64_t batch, std::vector<std::int64_t>& out) const {
    shard.positions(batch, out);
    if (options.shuffle)
      for (std::int64_t& value : out) value = order[value];
  }
};

LoaderBase::LoaderBase(std::int64_t samples, const LoaderOptions& options)
    : anchor_(std::make_shared<LoaderBase*>(this)) {
  check(options);
  pass_ = std::make_unique<Pass>(samples, options);
  shard(0, 1);
}

LoaderBase::~LoaderBase() = default;

void LoaderBase::stop() noexcept {
  leave(pass_->number);
  *anchor_ = nullptr;
  pass_->workers.reset();
}

std::int64_t LoaderBase::batches() const noexcept {
  return pass_->shard.batches();
}
std::int64_t LoaderBase::samples() const noexcept {
  return pass_->shard.options().size;
}
std::int64_t LoaderBase::batch_size() const noexcept {
  return pass_->shard.batch_size();
}
std::int64_t LoaderBase::global_batch_size() const noexcept {
  return pass_->shard.global_batch_size();
}
std::int64_t LoaderBase::remainder() const noexcept {
  return pass_->shard.remainder();
}
std::int64_t LoaderBase::epoch() const noexcept {
  return pass_->epoch;
}
std::int64_t LoaderBase::position() const noexcept {
  return pass_->position;
}
bool LoaderBase::is_running() const noexcept {
  return pass_->running;
}
bool LoaderBase::is_last_batch() const noexcept {
  return pass_->running && pass_->position == batches();
}
std::int64_t LoaderBase::rank() const noexcept {
  return pass_->shard.options().rank;
}
std::int64_t LoaderBase::num_processes() const noexcept {
  return pass_->shard.options().num_processes;
}
double LoaderBase::wait_seconds() const noexcept {
  return std::chrono::duration<double>(pass_->waited).count();
}
void LoaderBase::observe(std::shared_ptr<LoaderObserver> observer) noexcept {
  pass_->observer = std::move(observer);
}
const std::shared_ptr<LoaderObserver>& LoaderBase::observer() const noexcept {
  return pass_->observer;
}
void LoaderBase::set_even_batches(bool even) {
  require_idle("data::Loader::set_even_batches");
  pass_->options.even_batches = even;
  shard(rank(), num_processes());
}

const LoaderOptions& LoaderBase::options() const noexcept {
  return pass_->options;
}
std::size_t LoaderBase::current() const noexcept {
  return pass_->slot;
}

std::size_t LoaderBase::slots() const noexcept {
  const LoaderOptions& options = pass_->options;
  return 1 + static_cast<std::size_t>(options.workers) * static_cast<std::size_t>(options.prefetch);
}

void LoaderBase::require_idle(const char* operation) const {
  require(!pass_->running, ErrorCode::kFailedPrecondition, operation, "the loader is in a pass: batch ",
          pass_->position, " of ", batches(), " in epoch ", pass_->epoch, ". Call this before the loop.");
}

void LoaderBase::set_epoch(std::int64_t epoch) {
  require(epoch >= 0, ErrorCode::kInvalidArgument, "data::Loader::set_epoch", "the epoch is ", epoch, ".");
  require_idle("data::Loader::set_epoch");
  if (epoch == pass_->epoch) return;
  pass_->epoch = epoch;
  reshard(0);
}

void LoaderBase::skip_to(std::int64_t batch) {
  require_idle("data::Loader::skip_to");
  require(batch >= 0 && batch <= batches(), ErrorCode::kInvalidArgument, "data::Loader::skip_to",
          "there is no batch ", batch, " in a pass of ", batches(), ".");
  pass_->position = batch;
}

void LoaderBase::shard(std::int64_t rank, std::int64_t num_processes) {
  require_idle("data::Loader::shard");
  const LoaderOptions& options = pass_->options;
  const std::int64_t consumed = pass_->consumed();
  pass_->shard = Shard({.size = samples(),
                        .batch_size = options.batch_size,
                        .num_processes = num_processes,
                        .rank = rank,
                        .drop_last = options.drop_last,
                        .split_batches = options.split_batches,
                        .even_batches = options.even_batches && num_processes > 1});
  reshard(consumed);
}

/// Puts the next pass after the first `consumed` samples of its order. Where they are no whole number of
/// steps, the steps of this epoch are counted from a later sample.
void LoaderBase::reshard(std::int64_t consumed) {
  ShardOptions cut = pass_->shard.options();
  const std::int64_t step = pass_->shard.global_batch_size();
  // All is consumed: every step lies behind, the short last one too.
  const bool finished = consumed == cut.size;
  cut.first = finished ? 0 : consumed % step;
  pass_->shard = Shard(cut);
  pass_->position = finished ? pass_->shard.batches() : std::min(consumed / step, pass_->shard.batches());
}

void LoaderBase::place(const at::Device& device) {
  require_idle("data::Loader::place");
  pass_->device = device;
  pass_->pin =
      !device.is_cpu() && pass_->options.pin_memory.value_or(device::backend(device).wants_pinned_memory());
}

LoaderState LoaderBase::state() const {
  return {.size = samples(),
          .shuffle = pass_->options.shuffle,
          .seed = pass_->options.seed,
          .epoch = pass_->epoch,
          .consumed = pass_->consumed()};
}

void LoaderBase::load_state(const LoaderState& state) {
  constexpr const char* kOperation = "data::Loader::load_state";
  require_idle(kOperation);
  require(state.size == samples(), ErrorCode::kMismatch, kOperation, "the state is of a dataset of ",
          state.size, " samples, and this one has ", samples(),
          ". Give the dataset that the state was saved with.");
  require(state.shuffle == pass_->options.shuffle, ErrorCode::kMismatch, kOperation,
          "the state is of a loader with ", state.shuffle ? "" : "no ", "shuffling, and this one has ",
          pass_->options.shuffle ? "it" : "none", ". Set shuffle as it was when the state was saved.");
  require(state.epoch >= 0 && state.consumed >= 0 && state.consumed <= state.size, ErrorCode::kCorruptData,
          kOperation, "no loader can stand at sample ", state.consumed, " of ", state.size, " in epoch ",
          state.epoch, ". Take another checkpoint.");
  pass_->options.seed = state.seed;
  pass_->epoch = state.epoch;
  reshard(state.consumed);
}

std::uint64_t LoaderBase::begin_pass() {
  Pass& pass = *pass_;
  require(!pass.running, ErrorCode::kFailedPrecondition, "data::Loader",
          "a loop over this loader already runs: batch ", pass.position, " of ", batches(), " in epoch ",
          pass.epoch, ". Leave that loop first, or use a second loader.");
  pass.shuffle();
  pass.running = true;
  ++pass.number;
  try {
    if (pass.observer && !pass.observer->on_pass_begin(*this)) {
      suspend();
      return pass.number;
    }
    if (pass.options.workers > 0) {
      if (!pass.workers) {
        pass.worker_indices.resize(static_cast<std::size_t>(pass.options.workers));
        pass.workers = std::make_unique<Workers>(
            pass.options.workers, slots(), [this](int worker, std::int64_t batch, std::size_t slot) {
              return try_make(slot, worker, batch, pass_->worker_indices[static_cast<std::size_t>(worker)]);
            });
      }
      pass.workers->start(pass.position, batches());
    }
    fetch();
  } catch (...) {
    suspend();
    throw;
  }
  return pass.number;
}

void LoaderBase::next(std::uint64_t number) {
  Pass& pass = *pass_;
  require(pass.running && pass.number == number, ErrorCode::kFailedPrecondition, "data::Loader",
          "the pass of this iterator is over. Begin another.");
  try {
    clear(pass.slot);
    if (pass.workers) pass.workers->release(pass.position - 1);
    pass.slot = kNoSlot;
    if (pass.observer && !pass.observer->on_batch_end(*this)) return suspend();
    fetch();
  } catch (...) {
    suspend();
    throw;
  }
}

/// Gets the batch at `position` into the loop's hands, or ends the pass.
void LoaderBase::fetch() {
  Pass& pass = *pass_;
  if (pass.position >= batches()) return finish();
  const Clock::time_point begin = Clock::now();
  const std::size_t slot = pass.workers ? pass.workers->wait(pass.position) : make_here();
  if (pass.device) move(slot, *pass.device, pass.options.non_blocking);
  pass.waited += Clock::now() - begin;
  pass.slot = slot;
  ++pass.position;
}

std::size_t LoaderBase::make_here() {
  constexpr std::size_t kSlot = 0;
  const c10::NoGradGuard no_grad;
  if (const auto fault = try_make(kSlot, -1, pass_->position, pass_->indices))
    throw Error(fault->code, "data::Loader", fault->text);
  return kSlot;
}

std::optional<Fault> LoaderBase::try_make(std::size_t slot, int worker, std::int64_t batch,
                                          std::vector<std::int64_t>& indices) {
  std::size_t at = static_cast<std::size_t>(-1);
  try {
    pass_->find_samples(batch, indices);
    make(slot, worker, indices, pass_->context(), pass_->pin, at);
    return std::nullopt;
  } catch (...) {
    const Fault fault = current_fault();
    return Fault{fault.code, concat("the dataset failed on ", describe(indices, at), " of batch ", batch,
                                    " in epoch ", pass_->epoch, ": ", fault.text)};
  }
}

/// The pass ran to its end.
void LoaderBase::finish() {
  ++pass_->epoch;
  reshard(0);
  end_pass();
}

void LoaderBase::leave(std::uint64_t number) noexcept {
  if (!pass_->running || pass_->number != number) return;
  if (pass_->workers) pass_->workers->cancel();
  ++pass_->epoch;
  reshard(0);
  end_pass();
}

/// The pass ends here, and the next goes on after the batches that were given.
void LoaderBase::suspend() noexcept {
  if (pass_->running) end_pass();
}

void LoaderBase::end_pass() noexcept {
  if (pass_->workers) pass_->workers->cancel();
  for (std::size_t slot = 0; slot < slots(); ++slot) clear(slot);
  pass_->slot = kNoSlot;
  pass_->running = false;
  if (pass_->observer) pass_->observer->on_pass_end(*this);
}

}  // namespace hasten::data

#include <algorithm>
#include <csignal>
#include <sstream>
#include <thread>
#include <utility>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <hasten/comm/group.h>
#include <hasten/device/device.h>

#include "comm/group_state.h"
#include "comm/nccl.h"
#include "comm/rendezvous.h"

namespace hasten::comm {

using std::chrono::milliseconds;

Group::Group(std::unique_ptr<State> state) : state_(std::move(state)) {}
Group::~Group() = default;

int Group::rank() const {
  return state_->rank;
}
int Group::size() const {
  return state_->size;
}
const at::Device& Group::device() const {
  return state_->device;
}
bool Group::uses_shared_memory() const {
  return state_->local && state_->local->segment();
}
std::int64_t Group::bytes_given() const {
  return state_->local ? state_->local->bytes_given() : 0;
}
const c10::intrusive_ptr<c10d::ProcessGroup>& Group::process_group() const {
  return state_->process_group;
}

std::shared_ptr<Group> Group::solo(const at::Device& device) {
  return std::shared_ptr<Group>(new Group(std::unique_ptr<State>(new State{.device = device})));
}

namespace {

/// Gloo writes to sockets whose other end may have died. The signal that comes of it would end this process
/// without a word, where the failed write becomes an error that names the lost rank. A handler of the
/// program's own stays.
void ignore_broken_pipes() {
  struct sigaction present{};
  if (::sigaction(SIGPIPE, nullptr, &present) == 0 && present.sa_handler == SIG_DFL)
    ::signal(SIGPIPE, SIG_IGN);
}

}  // namespace

std::shared_ptr<Group> Group::connect(const config::Process& process, const at::Device& device,
                                      const GroupOptions& options) {
  constexpr std::string_view kName = "connect";
  require(process.world_size >= 1 && process.rank >= 0 && process.rank < process.world_size,
          ErrorCode::kInvalidArgument, kName, "rank ", process.rank, " of ", process.world_size,
          " processes does not exist. Ranks go from 0 to the number of processes less one.");
  require(options.timeout.count() > 0, ErrorCode::kInvalidArgument, kName, "a time-out of ",
          options.timeout.count(), " ms is not positive.");
  if (process.world_size == 1) return solo(device);
  ignore_broken_pipes();
  auto store = open_store(process, options.timeout);
  await_all_ranks(*store, process.rank, process.world_size, options.timeout);
  return std::shared_ptr<Group>(new Group(
      State::assemble(store, process.rank, process.world_size, device, options, process.main_address)));
}

std::shared_ptr<Group> Group::subgroup(const std::vector<int>& ranks) {
  constexpr std::string_view kName = "subgroup";
  for (const int rank : ranks) state_->check_rank(kName, "member", rank);
  std::vector<int> sorted = ranks;
  std::sort(sorted.begin(), sorted.end());
  require(std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end(), ErrorCode::kInvalidArgument,
          kName, "a rank is named twice among ", ranks_text(ranks), ".");
  const auto self = std::find(ranks.begin(), ranks.end(), state_->rank);
  require(self != ranks.end(), ErrorCode::kInvalidArgument, kName, "rank ", state_->rank, " is not among ",
          ranks_text(ranks), ". Only the members call this.");
  if (ranks.size() == 1) return solo(state_->device);
  const auto prefix = concat("subgroup ", ranks_text(ranks), " #", state_->subgroups[ranks]++);
  auto store = c10::make_intrusive<c10d::PrefixStore>(prefix, state_->store);
  const int rank = static_cast<int>(self - ranks.begin());
  const int size = static_cast<int>(ranks.size());
  await_all_ranks(*store, rank, size, state_->options.timeout);
  return std::shared_ptr<Group>(
      new Group(State::assemble(store, rank, size, state_->device, state_->options, state_->main_address)));
}

std::unique_ptr<Group::State> Group::State::assemble(c10::intrusive_ptr<c10d::Store> store, int rank,
                                                     int size, const at::Device& device,
                                                     const GroupOptions& options,
                                                     const std::string& main_address) {
  std::unique_ptr<State> state(new State{.rank = rank,
                                         .size = size,
                                         .device = device,
                                         .options = options,
                                         .main_address = main_address,
                                         .store = store});
  try {
    const Hosts hosts = compare_hosts(*store, rank, size, options.shared_memory);
    Sharing sharing = hosts.shared_memory ? share_memory(*store, rank, size) : Sharing{};
    auto gloo_options = GlooBackend::Options::create(options.timeout);
    gloo_options->devices.push_back(network_device(hosts.one, main_address));
    auto gloo = c10::make_intrusive<GlooBackend>(c10::make_intrusive<c10d::PrefixStore>("gloo", store), rank,
                                                 size, gloo_options);
    state->local = c10::make_intrusive<SharedMemoryBackend>(gloo, std::move(sharing.segment),
                                                            sharing.most_bytes, options.timeout);
    using ProcessGroup = c10d::ProcessGroup;
    state->process_group = c10::make_intrusive<ProcessGroup>(store, rank, size);
    state->process_group->setBackend(c10::DeviceType::CPU, ProcessGroup::GLOO, state->local);
    state->process_group->setDefaultBackend(ProcessGroup::GLOO);
    if (device::backend(device).collectives() == "nccl") {
      auto nccl = make_nccl(c10::make_intrusive<c10d::PrefixStore>("nccl", store), rank, size, device,
                            options.timeout);
      state->process_group->setBackend(device.type(), ProcessGroup::NCCL, nccl);
      state->process_group->setDefaultBackend(ProcessGroup::NCCL);
    }
    // From here on no rank needs the store, so the one that serves it may leave at any time.
    std::vector<std::byte> seen(static_cast<std::size_t>(size));
    state->exchange("connect", std::span(seen).first(1), seen);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    fail_from("connect", error, state->lost_ranks());
  }
  return state;
}

void Group::State::check_rank(std::string_view name, const char* what, int which) const {
  require(which >= 0 && which < size, ErrorCode::kInvalidArgument, name, what, " ", which,
          " is not one of the ", size, " ranks of this group.");
}

void Group::State::check_other_rank(std::string_view name, int which) const {
  check_rank(name, "rank", which);
  require(which != rank, ErrorCode::kInvalidArgument, name, "rank ", rank,
          " cannot exchange messages with itself.");
}

c10::intrusive_ptr<c10d::Backend> Group::State::backend_for(const at::Tensor& tensor) const {
  if (tensor.is_cpu()) return local;
  return process_group->getBackend(tensor.device().type());
}

void Group::State::exchange(std::string_view name, std::span<const std::byte> mine,
                            std::span<std::byte> all) {
  if (size == 1) {
    std::copy(mine.begin(), mine.end(), all.begin());
    return;
  }
  try {
    local->exchange(name, mine, all);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    const auto lost = lost_ranks();
    fail_from(name, error, lost.empty() ? ranks_not_in_this_call() : lost);
  }
}

std::vector<Notice> Group::State::agree(std::string_view name, Operation operation, std::int64_t detail,
                                        const at::Tensor& tensor, Agreement agreement,
                                        std::string_view remedy) {
  Notice mine{.operation = operation, .detail = detail};
  if (tensor.defined()) {
    require(tensor.dim() <= static_cast<std::int64_t>(Notice::kMostDimensions), ErrorCode::kInvalidArgument,
            name, "a tensor of ", tensor.dim(), " dimensions is not supported; ", Notice::kMostDimensions,
            " are the most.");
    mine.type = static_cast<std::int64_t>(tensor.scalar_type());
    mine.device = static_cast<std::int64_t>(tensor.device().type());
    mine.dimensions = tensor.dim();
    std::copy(tensor.sizes().begin(), tensor.sizes().end(), mine.sizes.begin());
  }
  if (size == 1) return {mine};
  ++notices;
  std::vector<Notice> all(static_cast<std::size_t>(size));
  exchange(name, std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  bool same_call = true;
  bool same_tensors = true;
  for (const Notice& one : all) {
    same_call = same_call && one.operation == operation && one.detail == detail;
    same_tensors = same_tensors && one == mine;
  }
  if (same_call && (same_tensors || agreement == Agreement::kOperation)) return all;
  std::ostringstream out;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const Notice& one = all[rank];
    out << (rank == 0 ? ": " : "; ") << "rank " << rank << " ";
    out << (same_call ? describe(one.scalar_type(), one.shape()) : one.text());
    if (one.device != mine.device)
      out << " on " << c10::DeviceTypeName(static_cast<c10::DeviceType>(one.device), true);
  }
  fail(ErrorCode::kMismatch, name, same_call ? "the ranks' tensors differ" : "the ranks make different calls",
       out.str(), ". ", remedy);
}

std::vector<int> Group::State::lost_ranks() const {
  return local && local->segment() ? local->segment()->lost() : std::vector<int>();
}

std::vector<int> Group::State::ranks_not_in_this_call() const {
  const auto key = [&](int which) { return concat("failed in ", notices, "/", which); };
  std::vector<int> missing;
  const SilentC10d silent;
  try {
    store->set(key(rank), std::vector<std::uint8_t>());
    const auto deadline = std::chrono::steady_clock::now() + milliseconds(500);
    do {
      missing.clear();
      for (int other = 0; other < size; ++other)
        if (!store->check({key(other)})) missing.push_back(other);
      std::this_thread::sleep_for(milliseconds(missing.empty() ? 0 : 20));
    } while (!missing.empty() && std::chrono::steady_clock::now() < deadline);
  } catch (const std::exception&) {
    return {};  // the store is gone, so rank 0 or the launcher is
  }
  return missing;
}

void Group::State::fail_from(std::string_view name, const std::exception& error,
                             const std::vector<int>& lost) {
  const bool late = is_time_out(error);
  const std::string who = lost.empty() ? std::string("another rank") : ranks_text(lost);
  fail(late ? ErrorCode::kTimeout : ErrorCode::kPeerLost, name, who,
       late ? " did not take part in time" : " ended, left or failed during the call", ": ", text_of(error),
       ". Look for the first error of ", who, ".");
}

}  // namespace hasten::comm

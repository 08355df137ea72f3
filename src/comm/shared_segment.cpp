#include "comm/shared_segment.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <fcntl.h>
#include <limits>
#include <linux/futex.h>
#include <new>
#include <random>
#include <sched.h>
#include <sstream>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>

namespace hasten::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr std::uint64_t kMagic = 0x31746e656d676573;
constexpr std::size_t kPage = 4096;
constexpr std::size_t kLine = 64;
constexpr std::size_t kSlotsPerRank = 2;
constexpr int kMostRanks = 1024;
constexpr std::size_t kMostSlotBytes = std::size_t{64} << 20;
/// Up to here every rank adds up everything, beyond each rank adds up one stripe and the others copy it: less
/// to read, but a second wait. With two ranks the amount to read is the same, and one wait is always better.
constexpr std::size_t kStripesFrom = 16 * 1024;

/// A waiting rank first spins, then offers its core to others for this long, then sleeps.
constexpr microseconds kYieldFor{200};
constexpr milliseconds kCheckPeersEvery{2};

enum class Kind : std::uint8_t { kAllReduce, kBroadcast, kAllGather, kBarrier };
enum FaultState : std::uint32_t { kNoFault, kBeingWritten, kFault };

std::size_t round_up(std::size_t value, std::size_t step) {
  return (value + step - 1) / step * step;
}

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

long futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value, const timespec* timeout) {
  return ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), operation, value, timeout, nullptr, 0);
}

std::string time_text(milliseconds time) {
  if (time < milliseconds(10'000)) return concat(time.count(), " ms");
  return concat(time.count() / 1000, " s");
}

}  // namespace

/// One rank's part in one call. All ranks must write the same but for the sequence and the name.
struct SharedSegment::Step {
  std::uint64_t bytes = 0;
  std::int32_t root = 0;
  Kind kind = Kind::kBarrier;
  Element element = Element::kUInt8;
  Reduction reduction = Reduction::kSum;

  [[nodiscard]] bool operator==(const Step&) const = default;

  [[nodiscard]] std::string text() const {
    switch (kind) {
      case Kind::kAllReduce:
        return concat("all_reduce (", name_of(reduction), ") of ", bytes / size_of(element), " ",
                      name_of(element));
      case Kind::kBroadcast:
        return concat("broadcast of ", bytes, " bytes from rank ", root);
      case Kind::kAllGather:
        return concat("all_gather of ", bytes, " bytes");
      case Kind::kBarrier:
        return "barrier";
    }
    return "?";
  }
};

struct SharedSegment::Member {
  struct alignas(kLine) Cell {
    std::atomic<std::uint64_t> arrived{0};
    Step step;
    std::array<char, 24> name{};
  };
  std::array<Cell, kSlotsPerRank> cells;
  alignas(kLine) std::atomic<std::uint64_t> reduced{0};
  std::atomic<bool> left{false};

  Cell& cell(std::uint64_t sequence) { return cells[sequence % kSlotsPerRank]; }
};

struct SharedSegment::Header {
  std::uint64_t magic = kMagic;
  std::uint64_t token = 0;
  std::uint32_t size = 0;
  std::uint64_t slot_bytes = 0;
  std::uint64_t slot_stride = 0;
  std::uint64_t members_at = 0;
  std::uint64_t slots_at = 0;
  std::uint64_t total_bytes = 0;
  alignas(kLine) std::atomic<std::uint32_t> bell{0};  // counts rings; sleepers wait for a change
  std::atomic<std::uint32_t> sleepers{0};
  alignas(kLine) std::atomic<std::uint32_t> fault{kNoFault};
  ErrorCode fault_code = ErrorCode::kPeerLost;
  std::array<char, 64> fault_name{};
  std::array<char, 2048> fault_text{};
};

static_assert(std::atomic<std::uint64_t>::is_always_lock_free &&
              std::atomic<std::uint32_t>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

int usable_cores() {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

std::string ranks_text(const std::vector<int>& ranks) {
  std::ostringstream out;
  out << (ranks.size() == 1 ? "rank " : "ranks ");
  for (std::size_t i = 0; i < ranks.size(); ++i) out << (i > 0 ? ", " : "") << ranks[i];
  return out.str();
}

SharedSegment::SharedSegment(int rank, int descriptor, std::size_t mapped_bytes, std::byte* memory)
    : rank_(rank), descriptor_(descriptor), mapped_bytes_(mapped_bytes), memory_(memory) {}

std::unique_ptr<SharedSegment> SharedSegment::create(const Settings& settings) {
  constexpr std::string_view kName = "shared_segment";
  require(settings.size >= 1 && settings.size <= kMostRanks && settings.slot_bytes >= kLine,
          ErrorCode::kInvalidArgument, kName, "a segment of ", settings.size, " ranks with slots of ",
          settings.slot_bytes, " bytes cannot be made.");
  const auto size = static_cast<std::size_t>(settings.size);
  require(settings.slot_bytes <= kMostSlotBytes, ErrorCode::kSystem, kName, "slots of ", settings.slot_bytes,
          " bytes are too large.");
  const std::size_t members_at = round_up(sizeof(Header), kPage);
  const std::size_t slots_at = round_up(members_at + size * sizeof(Member), kPage);
  const std::size_t slot_bytes = round_up(settings.slot_bytes, kLine);
  // Not a whole number of pages: data at equal places of two slots then falls into different cache sets.
  const std::size_t stride = round_up(slot_bytes, kPage) + 4 * kLine;
  const std::size_t total = round_up(slots_at + size * kSlotsPerRank * stride, kPage);

  const int descriptor = ::memfd_create("hasten", MFD_CLOEXEC);
  if (descriptor < 0) fail_system(errno, kName, "shared memory cannot be made");
  // Takes the memory now: a write to memory that the system lacks would end the process with SIGBUS later.
  if (const int error = ::posix_fallocate(descriptor, 0, static_cast<off_t>(total)); error != 0) {
    ::close(descriptor);
    fail_system(error, kName, concat("no ", total, " bytes of shared memory"));
  }
  void* memory = ::mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, descriptor, 0);
  if (memory == MAP_FAILED) {
    const int error = errno;
    ::close(descriptor);
    fail_system(error, kName, "shared memory cannot be mapped");
  }
  std::unique_ptr<SharedSegment> segment(
      new SharedSegment(0, descriptor, total, static_cast<std::byte*>(memory)));
  auto* header = new (memory) Header;
  std::random_device random;
  header->token = (std::uint64_t{random()} << 32) | random();
  header->size = static_cast<std::uint32_t>(size);
  header->slot_bytes = slot_bytes;
  header->slot_stride = stride;
  header->members_at = members_at;
  header->slots_at = slots_at;
  header->total_bytes = total;
  segment->size_ = settings.size;
  for (int rank = 0; rank < settings.size; ++rank) new (&segment->member(rank)) Member;
  segment->hold_lock();
  return segment;
}

std::string SharedSegment::ticket() const {
  return concat("/proc/", ::getpid(), "/fd/", descriptor_, " ", header().token);
}

std::unique_ptr<SharedSegment> SharedSegment::attach(int rank, const std::string& ticket) {
  constexpr std::string_view kName = "shared_segment";
  std::istringstream in(ticket);
  std::string path;
  std::uint64_t token = 0;
  require(static_cast<bool>(in >> path >> token), ErrorCode::kUnavailable, kName, "'", ticket,
          "' is no ticket.");
  // Opened anew rather than inherited, since a lock belongs to one opening of the file.
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  require(descriptor >= 0, ErrorCode::kUnavailable, kName, path, " cannot be opened: ", std::strerror(errno),
          ".");
  struct stat status{};
  const bool known = ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
  const auto total = known ? static_cast<std::size_t>(status.st_size) : 0;
  void* memory = MAP_FAILED;
  if (total >= sizeof(Header))
    memory = ::mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, descriptor, 0);
  if (memory == MAP_FAILED) {
    ::close(descriptor);
    fail(ErrorCode::kUnavailable, kName, path, " is no segment or cannot be mapped.");
  }
  std::unique_ptr<SharedSegment> segment(
      new SharedSegment(rank, descriptor, total, static_cast<std::byte*>(memory)));
  const Header& header = segment->header();
  require(header.magic == kMagic && header.token == token && header.total_bytes == total,
          ErrorCode::kUnavailable, kName, path, " is not the segment of this group.");
  require(rank > 0 && rank < static_cast<int>(header.size), ErrorCode::kInvalidArgument, kName, "rank ", rank,
          " cannot join a segment of ", header.size, " ranks.");
  segment->size_ = static_cast<int>(header.size);
  segment->hold_lock();
  return segment;
}

SharedSegment::~SharedSegment() {
  if (size_ > 0) {
    member(rank_).left.store(true);
    ring();
  }
  ::munmap(memory_, mapped_bytes_);
  ::close(descriptor_);  // gives up the lock
}

void SharedSegment::hold_lock() {
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank_;
  lock.l_len = 1;
  if (::fcntl(descriptor_, F_OFD_SETLK, &lock) != 0)
    fail_system(errno, "shared_segment", concat("the lock of rank ", rank_, " cannot be taken"));
  // Some microseconds, and only where every rank may have a core of its own: yielding costs hardly more where
  // the core is free, and much less where another process wants it.
  spins_ = size_ <= usable_cores() ? 300 : 30;
}

bool SharedSegment::is_gone(int rank) const {
  if (member(rank).left.load()) return true;
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank;
  lock.l_len = 1;
  return ::fcntl(descriptor_, F_OFD_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
}

SharedSegment::Header& SharedSegment::header() const {
  return *reinterpret_cast<Header*>(memory_);
}

SharedSegment::Member& SharedSegment::member(int rank) const {
  return reinterpret_cast<Member*>(memory_ + header().members_at)[rank];
}

std::byte* SharedSegment::slot(int rank, std::uint64_t sequence) const {
  const std::size_t number = static_cast<std::size_t>(rank) * kSlotsPerRank + sequence % kSlotsPerRank;
  return memory_ + header().slots_at + number * header().slot_stride;
}

std::vector<int> SharedSegment::lost() const {
  std::vector<int> gone;
  for (int rank = 0; rank < size_; ++rank)
    if (rank != rank_ && is_gone(rank)) gone.push_back(rank);
  return gone;
}

// ---- the calls ----

void SharedSegment::all_reduce(const Call& call, std::span<std::byte> data, Element element,
                               Reduction reduction) {
  const std::size_t slot_bytes = header().slot_bytes;
  Step step{data.size(), 0, Kind::kAllReduce, element, reduction};
  std::vector<const std::byte*> inputs(static_cast<std::size_t>(size_));
  for (std::size_t at = 0; at == 0 || at < data.size(); at += slot_bytes) {
    const auto part = data.subspan(at, std::min(slot_bytes, data.size() - at));
    begin(call, step, part);
    if (size_ > 2 && part.size() >= kStripesFrom) {
      reduce_in_stripes(call, part, element, reduction);
      continue;
    }
    for (int rank = 0; rank < size_; ++rank) inputs[static_cast<std::size_t>(rank)] = slot(rank, sequence_);
    reduce(element, reduction, part.data(), inputs.data(), size_, part.size() / size_of(element));
  }
}

void SharedSegment::reduce_in_stripes(const Call& call, std::span<std::byte> data, Element element,
                                      Reduction reduction) {
  const auto size = static_cast<std::size_t>(size_);
  const std::size_t stripe = round_up((data.size() + size - 1) / size, kLine);
  const auto bounds = [&](int rank) {
    const std::size_t from = std::min(data.size(), static_cast<std::size_t>(rank) * stripe);
    return std::pair(from, std::min(data.size(), from + stripe) - from);
  };
  const auto [from, bytes] = bounds(rank_);
  std::vector<const std::byte*> inputs(size);
  for (int rank = 0; rank < size_; ++rank)
    inputs[static_cast<std::size_t>(rank)] = slot(rank, sequence_) + from;
  // The result replaces this rank's own input: nobody else reads this stripe of it before `reduced` says so.
  reduce(element, reduction, slot(rank_, sequence_) + from, inputs.data(), size_, bytes / size_of(element));
  member(rank_).reduced.store(sequence_);
  ring();
  wait_for_all(call, [](Member& member) -> auto& { return member.reduced; });
  for (int rank = 0; rank < size_; ++rank) {
    const auto [at, count] = bounds(rank);
    if (count > 0) std::memcpy(data.data() + at, slot(rank, sequence_) + at, count);
  }
}

void SharedSegment::broadcast(const Call& call, std::span<std::byte> data, int root) {
  const std::size_t slot_bytes = header().slot_bytes;
  const Step step{data.size(), root, Kind::kBroadcast};
  for (std::size_t at = 0; at == 0 || at < data.size(); at += slot_bytes) {
    const auto part = data.subspan(at, std::min(slot_bytes, data.size() - at));
    begin(call, step, rank_ == root ? part : std::span<std::byte>());
    if (rank_ != root && !part.empty()) std::memcpy(part.data(), slot(root, sequence_), part.size());
  }
}

void SharedSegment::all_gather(const Call& call, std::span<const std::byte> mine,
                               std::span<std::byte* const> outputs) {
  const std::size_t slot_bytes = header().slot_bytes;
  const Step step{mine.size(), 0, Kind::kAllGather};
  for (std::size_t at = 0; at == 0 || at < mine.size(); at += slot_bytes) {
    const auto part = mine.subspan(at, std::min(slot_bytes, mine.size() - at));
    begin(call, step, part);
    for (int rank = 0; rank < size_ && !part.empty(); ++rank)
      std::memcpy(outputs[static_cast<std::size_t>(rank)] + at, slot(rank, sequence_), part.size());
  }
}

void SharedSegment::barrier(const Call& call) {
  begin(call, Step{}, {});
}

/// Shows this rank's part to the others and waits until all show theirs.
void SharedSegment::begin(const Call& call, const Step& step, std::span<const std::byte> deposit) {
  throw_if_failed(call.name);
  ++sequence_;
  if (!deposit.empty()) std::memcpy(slot(rank_, sequence_), deposit.data(), deposit.size());
  Member::Cell& cell = member(rank_).cell(sequence_);
  cell.step = step;
  cell.name.fill('\0');
  std::memcpy(cell.name.data(), call.name.data(), std::min(call.name.size(), cell.name.size() - 1));
  cell.arrived.store(sequence_);
  ring();
  wait_for_all(call, [this](Member& member) -> auto& { return member.cell(sequence_).arrived; });
  check_agreement(call);
}

void SharedSegment::check_agreement(const Call& call) {
  const Step& mine = member(rank_).cell(sequence_).step;
  bool same = true;
  for (int rank = 0; rank < size_; ++rank) same = same && member(rank).cell(sequence_).step == mine;
  if (same) return;
  std::ostringstream out;
  out << "the ranks called different things: ";
  for (int rank = 0; rank < size_; ++rank) {
    const Member::Cell& cell = member(rank).cell(sequence_);
    out << (rank > 0 ? "; " : "") << "rank " << rank << " " << cell.name.data() << ": " << cell.step.text();
  }
  out << ". All ranks must make the same calls in the same order.";
  fail_all(ErrorCode::kMismatch, call, out.str());
}

// ---- waiting ----
//
// A sleeper counts itself, then looks for what it waits for, then sleeps; a ringer writes, then looks for
// sleepers. Both sides are sequentially consistent, so that one of them sees the other.

void SharedSegment::ring() {
  Header& head = header();
  if (head.sleepers.load() == 0) return;
  head.bell.fetch_add(1);
  futex(head.bell, FUTEX_WAKE, INT_MAX, nullptr);
}

void SharedSegment::sleep_until_rung(const std::atomic<std::uint64_t>& awaited, std::uint64_t until,
                                     milliseconds longest) {
  Header& head = header();
  head.sleepers.fetch_add(1);
  const std::uint32_t heard = head.bell.load();
  if (awaited.load() < until && head.fault.load() == kNoFault) {
    const auto nanoseconds = std::chrono::nanoseconds(longest).count();
    const timespec timeout{static_cast<time_t>(nanoseconds / 1'000'000'000),
                           static_cast<long>(nanoseconds % 1'000'000'000)};
    futex(head.bell, FUTEX_WAIT, heard, &timeout);
  }
  head.sleepers.fetch_sub(1);
}

/// Waits until what `awaited` picks of every member has reached the present sequence number.
template <class Awaited>
void SharedSegment::wait_for_all(const Call& call, Awaited awaited) {
  const Header& head = header();
  int next = 0;  // all before it have arrived
  const auto all_arrived = [&] {
    while (next < size_ && awaited(member(next)).load(std::memory_order_acquire) >= sequence_) ++next;
    return next == size_;
  };
  for (int i = 0; i < spins_; ++i) {
    if (all_arrived()) return;
    relax();
  }
  const auto start = Clock::now();
  auto next_check = start + kCheckPeersEvery;
  while (!all_arrived()) {
    if (head.fault.load(std::memory_order_acquire) != kNoFault) throw *failure();
    const auto now = Clock::now();
    if (now >= next_check) {
      next_check = now + kCheckPeersEvery;
      std::vector<int> missing;
      std::vector<int> gone;
      std::vector<int> left;
      for (int rank = 0; rank < size_; ++rank) {
        const bool away = is_gone(rank);  // before the look at what it has done
        if (awaited(member(rank)).load() >= sequence_) continue;
        missing.push_back(rank);
        if (away) (member(rank).left.load() ? left : gone).push_back(rank);
      }
      if (!gone.empty())
        fail_all(ErrorCode::kPeerLost, call,
                 ranks_text(gone) +
                     " ended before taking part; the others waited. Look for the first error of " +
                     ranks_text(gone) + ".");
      if (!left.empty())
        fail_all(
            ErrorCode::kPeerLost, call,
            ranks_text(left) + " left the group without taking part. All ranks must make the same calls.");
      if (!missing.empty() && now - start >= call.timeout)
        fail_all(ErrorCode::kTimeout, call,
                 concat(ranks_text(missing), " did not arrive within ", time_text(call.timeout), "; rank ",
                        rank_, " waited. Check that every rank makes this call, or allow more time."));
    }
    if (now - start < kYieldFor)
      ::sched_yield();
    else
      sleep_until_rung(awaited(member(next)), sequence_, kCheckPeersEvery);
  }
}

// ---- faults ----

void SharedSegment::fail_all(ErrorCode code, const Call& call, const std::string& message) {
  Header& head = header();
  std::uint32_t expected = kNoFault;
  if (head.fault.compare_exchange_strong(expected, kBeingWritten)) {
    head.fault_code = code;
    std::memcpy(head.fault_name.data(), call.name.data(),
                std::min(call.name.size(), head.fault_name.size() - 1));
    std::memcpy(head.fault_text.data(), message.data(), std::min(message.size(), head.fault_text.size() - 1));
    head.fault.store(kFault);
    ring();
  }
  throw *failure();
}

std::optional<Error> SharedSegment::failure() const {
  const Header& head = header();
  if (head.fault.load(std::memory_order_acquire) == kNoFault) return std::nullopt;
  // The rank that writes the fault may die while it does; then its text is missing.
  const auto deadline = Clock::now() + milliseconds(200);
  while (head.fault.load(std::memory_order_acquire) != kFault) {
    if (Clock::now() > deadline)
      return Error(ErrorCode::kPeerLost, "comm", "a rank ended while it reported a fault.");
    ::sched_yield();
  }
  return Error(head.fault_code, head.fault_name.data(), head.fault_text.data());
}

void SharedSegment::throw_if_failed(std::string_view name) const {
  if (header().fault.load(std::memory_order_acquire) == kNoFault) return;
  const Error first = *failure();
  fail(first.code(), name, "the group failed before: ", first.what());
}

}  // namespace hasten::comm

#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <type_traits>
#include <utility>

namespace hasten::comm {
class Group;
}

namespace hasten::memory {

struct BatchSizeOptions {
  std::int64_t starting_batch_size = 128;
  /// Halve the size after a failure, instead of taking nine tenths of it.
  bool halve = false;
  /// The processes that must use one size: all try again when one ran out of memory. Null: this one decides
  /// for itself.
  comm::Group* group = nullptr;
};

/// Whether an exception says that memory ran out, on any device.
[[nodiscard]] bool is_out_of_memory(const std::exception& error);

namespace detail {
/// The first size. Throws `kInvalidArgument` below 1.
[[nodiscard]] std::int64_t first(const BatchSizeOptions& options);
/// The size after a failure. Throws `kUnavailable` when none is left.
[[nodiscard]] std::int64_t smaller(std::int64_t size, const BatchSizeOptions& options);
/// Whether the attempt failed on any rank.
[[nodiscard]] bool failed_anywhere(bool failed, const BatchSizeOptions& options);
/// Gives the memory that is kept for later back, on all devices.
void release();
}  // namespace detail

/// Calls `f(batch_size)` with smaller and smaller sizes until it does not run out of memory; returns what it
/// returns. What `f` made must be gone when it leaves by an exception. All memory that is kept for later is
/// given back before each attempt. Any other exception passes at once. Throws `kInvalidArgument` for a first
/// size below 1, `kUnavailable` when even a size of 1 fails.
///
/// With a group, `f` must not wait for other ranks after its own memory ran out; those that wait in it for a
/// rank that failed end with their time-out.
template <class F>
auto find_executable_batch_size(const BatchSizeOptions& options, F&& f) {
  using Result = std::invoke_result_t<F&, std::int64_t>;
  for (std::int64_t size = detail::first(options);; size = detail::smaller(size, options)) {
    detail::release();
    bool failed = false;
    if constexpr (std::is_void_v<Result>) {
      try {
        f(size);
      } catch (const std::exception& error) {
        if (!is_out_of_memory(error)) throw;
        failed = true;
      }
      if (!detail::failed_anywhere(failed, options)) return;
    } else {
      std::optional<Result> result;
      try {
        result.emplace(f(size));
      } catch (const std::exception& error) {
        if (!is_out_of_memory(error)) throw;
        failed = true;
      }
      if (!detail::failed_anywhere(failed, options)) return *std::move(result);
    }
  }
}

}  // namespace hasten::memory

#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace hasten {

/// What kind of fault an `Error` is, for programs that react to one kind.
enum class ErrorCode {
  kInvalidArgument,    ///< a value the caller gave cannot be used
  kNotFound,           ///< a file, key or parameter that was named does not exist
  kCorruptData,        ///< a file or message holds what its format forbids
  kMismatch,           ///< two things that must agree do not: shapes, names, ranks
  kUnavailable,        ///< the machine or this build lacks what was asked for
  kTimeout,            ///< something did not happen in its time
  kPeerLost,           ///< another process of the run died or left
  kSystem,             ///< the operating system refused: disk full, no permission, ...
  kFailedPrecondition  ///< the call is not allowed in the present state
};

/// The exception of this library. Its text is `[operation] what was wrong, with the values. Remedy.`
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, std::string_view operation, std::string_view message)
      : std::runtime_error("[" + std::string(operation) + "] " + std::string(message)), code_(code) {}

  [[nodiscard]] ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

/// The parts of a message written after one another, as `operator<<` writes them.
template <class... Parts>
[[nodiscard]] std::string concat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

/// Throws an `Error` whose message is the parts written after one another.
template <class... Parts>
[[noreturn]] void fail(ErrorCode code, std::string_view operation, const Parts&... parts) {
  throw Error(code, operation, concat(parts...));
}

/// Throws an `Error` as `fail` does unless `condition` holds. The parts are written only on failure.
template <class... Parts>
void require(bool condition, ErrorCode code, std::string_view operation, const Parts&... parts) {
  if (!condition) [[unlikely]]
    fail(code, operation, parts...);
}

/// Throws an `Error` with code `kSystem` that ends in the meaning of `error_number` (an `errno` value).
[[noreturn]] void fail_system(int error_number, std::string_view operation, std::string_view message);

}  // namespace hasten

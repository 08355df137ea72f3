#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

namespace hasten {

namespace detail {
class Run;
}

/// What a profile records. Names are those of PyTorch's profiler. New fields are appended.
struct ProfileOptions {
  /// Where each rank writes `trace_rank_R.json`, or `trace_rank_R_I.json` for its I-th period under a
  /// schedule. Chrome's tracing and Perfetto open it.
  std::filesystem::path output_trace_dir = "profile";
  bool record_shapes = false;   ///< the shapes of operators' inputs
  bool profile_memory = false;  ///< allocations and frees
  bool with_flops = false;      ///< estimates of matrix products' and convolutions' operations
  /// A schedule: after `skip_first` steps, let `wait` pass, record `active`, and that `repeat` times (0:
  /// again and again). With `active` 0 all is recorded, to the end of the profile's life.
  std::int64_t skip_first = 0;
  std::int64_t wait = 0;
  std::int64_t active = 0;
  std::int64_t repeat = 0;
};

/// Records what LibTorch does on this thread, in autograd's threads and on the device, while it lives. One at
/// a time in a process.
class [[nodiscard]] Profile {
 public:
  /// Throws `kFailedPrecondition` while another one records, `kInvalidArgument` for negative counts,
  /// `kSystem` when the folder cannot be made.
  Profile(const detail::Run& run, const ProfileOptions& options);
  /// Writes what was recorded; a failure to write is logged.
  ~Profile();
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;

  /// Ends a step of a schedule; to be called at the end of the loop's body.
  void step();
  /// The file of the last period that was written; empty before that.
  [[nodiscard]] const std::filesystem::path& trace() const noexcept { return trace_; }

 private:
  [[nodiscard]] bool is_due() const;
  void begin();
  void end();

  ProfileOptions options_;
  int rank_;
  bool on_accelerator_;
  bool recording_ = false;
  std::int64_t steps_ = 0;
  std::int64_t periods_ = 0;
  std::filesystem::path trace_;
};

}  // namespace hasten

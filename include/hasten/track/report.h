#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace hasten::track {

/// What a run did, for the table at its end. Counts and times are of this process's life, not of the runs
/// before a resume; fields that are unset, zero or empty are left out.
struct RunReport {
  std::int64_t processes = 1;
  std::string device{};     ///< of each process: "cpu", "cuda"
  std::string precision{};  ///< "no", "bf16", "fp16"
  std::int64_t epochs = 0;
  std::int64_t steps = 0;                     ///< optimizer updates
  std::int64_t samples = 0;                   ///< over all processes
  double seconds = 0;                         ///< from the first step on
  std::optional<double> data_seconds{};       ///< of these, waiting for the loader
  std::optional<std::int64_t> peak_memory{};  ///< bytes of the largest process
  std::string resumed_from{};
  std::string checkpoint{};                ///< folder of the last one
  std::map<std::string, double> values{};  ///< last values by name
  bool interrupted = false;                ///< the run was told to stop, and will go on
};

/// The report as a table of aligned lines, ending in a new line:
///
///     -- Training finished ----------------------------
///     processes         2 x cpu, bf16
///     steps             4,690 in 3:12   24.43 a second
///     samples           600,192         3126 a second
///     waiting for data  1.2 %
///     checkpoint        runs/fashion/checkpoint_9
///     accuracy          0.8912
///     -------------------------------------------------
[[nodiscard]] std::string format_report(const RunReport& report);

}  // namespace hasten::track

#include <mutex>
#include <set>

#include <hasten/base/error.h>
#include <hasten/train/accelerator.h>
#include <hasten/train/logger.h>

#include "train/run.h"

namespace hasten {

Logger::Logger(const Accelerator& accelerator) : run_(accelerator.run_) {}

void Logger::write(log::Level level, std::string_view text, const LogOptions& options) const {
  const int rank = run_->process.rank;
  const std::string line = concat("[rank ", rank, "] ", text);
  if (options.in_order) {
    for (int turn = 0; turn < run_->process.world_size; ++turn) {
      if (turn == rank) log::write(level, line);
      run_->group->barrier();
    }
  } else if (!options.main_process_only) {
    log::write(level, line);
  } else if (rank == 0) {
    log::write(level, text);
  }
}

void Logger::warning_once(std::string_view text, const LogOptions& options) const {
  static std::mutex mutex;
  static std::set<std::string, std::less<>> said;
  {
    const std::lock_guard lock(mutex);
    if (!said.emplace(text).second) return;
  }
  warning(text, options);
}

}  // namespace hasten

#include <torch/csrc/autograd/profiler_kineto.h>

#include <hasten/base/error.h>
#include <hasten/base/log.h>
#include <hasten/train/profile.h>

#include "train/run.h"

namespace hasten {

namespace profiler = torch::profiler::impl;

Profile::Profile(const detail::Run& run, const ProfileOptions& options)
    : options_(options), rank_(run.process.rank), on_accelerator_(!run.device.is_cpu()) {
  require(options.skip_first >= 0 && options.wait >= 0 && options.active >= 0 && options.repeat >= 0,
          ErrorCode::kInvalidArgument, "profile", "skip_first is ", options.skip_first, ", wait ",
          options.wait, ", active ", options.active, " and repeat ", options.repeat,
          ". Set each to 0 or more steps.");
  require(!profiler::profilerEnabled(), ErrorCode::kFailedPrecondition, "profile",
          "another profile records already. End it first.");
  std::error_code failure;
  std::filesystem::create_directories(options_.output_trace_dir, failure);
  if (failure)
    fail_system(failure.value(), "profile",
                concat("cannot make the folder '", options_.output_trace_dir.string(), "'"));
  if (is_due()) begin();
}

Profile::~Profile() {
  try {
    end();
  } catch (const std::exception& error) {
    log::error(concat("the profile could not be written to '", options_.output_trace_dir.string(),
                      "': ", error.what()));
  }
}

bool Profile::is_due() const {
  if (options_.active == 0) return true;
  const std::int64_t since = steps_ - options_.skip_first;
  const std::int64_t period = options_.wait + options_.active;
  if (since < 0 || (options_.repeat > 0 && since >= options_.repeat * period)) return false;
  return since % period >= options_.wait;
}

void Profile::step() {
  ++steps_;
  if (options_.active == 0) return;
  const bool starts_anew =
      (steps_ - options_.skip_first) % (options_.wait + options_.active) == options_.wait;
  if (recording_ && (!is_due() || starts_anew)) end();
  if (!recording_ && is_due()) begin();
}

void Profile::begin() {
  std::set<profiler::ActivityType> activities{profiler::ActivityType::CPU};
  if (on_accelerator_) activities.insert(profiler::ActivityType::CUDA);
  const profiler::ProfilerConfig config(profiler::ProfilerState::KINETO, options_.record_shapes,
                                        options_.profile_memory, /*with_stack=*/false, options_.with_flops);
  torch::autograd::profiler::prepareProfiler(config, activities);
  torch::autograd::profiler::enableProfiler(config, activities);
  recording_ = true;
}

void Profile::end() {
  if (!recording_) return;
  recording_ = false;
  const auto result = torch::autograd::profiler::disableProfiler();
  const std::string number = options_.active == 0 ? "" : concat("_", periods_);
  ++periods_;
  trace_ = options_.output_trace_dir / concat("trace_rank_", rank_, number, ".json");
  result->save(trace_.string());
}

}  // namespace hasten

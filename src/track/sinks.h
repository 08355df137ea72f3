#pragma once

#include <filesystem>
#include <memory>

#include <hasten/track/tracker.h>

namespace hasten::track {

std::unique_ptr<Tracker> make_tensorboard_tracker(const std::filesystem::path& folder);
std::unique_ptr<Tracker> make_jsonl_tracker(const std::filesystem::path& folder);

/// Seconds since 1970.
double wall_time();

}  // namespace hasten::track

#include <array>
#include <atomic>
#include <cstdio>
#include <unistd.h>

#include <hasten/base/error.h>
#include <hasten/formats/event_file.h>

#include "formats/protobuf.h"
#include "formats/record.h"

namespace hasten::formats {
namespace {

using namespace protobuf;

constexpr double kLongestWait = 10;  // seconds

// Field numbers of the messages.
namespace event {
constexpr std::uint32_t kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5;
}
namespace summary {
constexpr std::uint32_t kValue = 1;
}
namespace value {
constexpr std::uint32_t kTag = 1, kSimpleValue = 2, kTensor = 8, kMetadata = 9;
}
namespace metadata {
constexpr std::uint32_t kPluginData = 1, kPluginName = 1;
}
namespace tensor {
constexpr std::uint32_t kDtype = 1, kShape = 2, kStringValue = 8;
constexpr std::int64_t kDtypeString = 7;
}  // namespace tensor

std::string begin_event(double wall_time, std::int64_t step) {
  std::string out;
  append_double(out, event::kWallTime, wall_time);
  if (step != 0) append_integer(out, event::kStep, step);  // zero is the default, which proto3 does not write
  return out;
}

/// An event of one summary with one value.
std::string summary_event(double wall_time, std::int64_t step, std::string_view encoded_value) {
  std::string encoded;
  append_bytes(encoded, summary::kValue, encoded_value);
  std::string out = begin_event(wall_time, step);
  append_bytes(out, event::kSummary, encoded);
  return out;
}

std::string file_name(double wall_time) {
  static std::atomic<int> count{0};
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0 || host[0] == '\0') host = {"localhost"};
  // Ten digits, so that names sort by time: TensorBoard reads the files of a folder in the order of their
  // names.
  std::array<char, 24> time{};
  std::snprintf(time.data(), time.size(), "%010lld", static_cast<long long>(wall_time));
  return concat("events.out.tfevents.", time.data(), '.', host.data(), '.', ::getpid(), '.', count++);
}

}  // namespace

EventWriter::EventWriter(const std::filesystem::path& folder, double wall_time)
    : file_(folder / file_name(wall_time), AppendFile::Start::kNew), written_until_(wall_time) {
  std::string version = begin_event(wall_time, 0);
  append_bytes(version, event::kFileVersion, "brain.Event:2");
  append(version, wall_time);
}

void EventWriter::scalar(std::string_view tag, double value, std::int64_t step, double wall_time) {
  std::string encoded;
  append_bytes(encoded, value::kTag, tag);
  append_float(encoded, value::kSimpleValue, static_cast<float>(value));
  append(summary_event(wall_time, step, encoded), wall_time);
}

void EventWriter::text(std::string_view tag, std::string_view text, std::int64_t step, double wall_time) {
  std::string string_tensor;
  append_integer(string_tensor, tensor::kDtype, tensor::kDtypeString);
  append_bytes(string_tensor, tensor::kShape, "");
  append_bytes(string_tensor, tensor::kStringValue, text);
  std::string plugin;
  append_bytes(plugin, metadata::kPluginName, "text");
  std::string description;
  append_bytes(description, metadata::kPluginData, plugin);
  std::string encoded;
  append_bytes(encoded, value::kTag, tag);
  append_bytes(encoded, value::kTensor, string_tensor);
  append_bytes(encoded, value::kMetadata, description);
  append(summary_event(wall_time, step, encoded), wall_time);
}

void EventWriter::append(std::string_view event, double wall_time) {
  std::string record;
  append_record(record, event);
  file_.append(record);
  if (wall_time - written_until_ < kLongestWait) return;
  file_.flush();
  written_until_ = wall_time;
}

}  // namespace hasten::formats

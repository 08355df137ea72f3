#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include <hasten/formats/append_file.h>

namespace hasten::formats {

/// Writes a TensorBoard event file: records in TFRecord framing, each an `Event` message
/// (github.com/tensorflow/tensorflow, core/util/event.proto and core/framework/summary.proto).
/// Not thread-safe. Events are kept in memory until 64 kB have gathered, an event is ten seconds younger than
/// those last written, `flush`, or the destructor, which drops an error.
class EventWriter {
 public:
  /// Makes `folder` where needed and in it a new file `events.out.tfevents.TIME.HOST.PID.N`, N counting the
  /// files of this process, which begins with the record of the format's version. `wall_time` is in seconds
  /// since 1970. Throws `kSystem`.
  EventWriter(const std::filesystem::path& folder, double wall_time);

  /// A point of the curve `tag`. The format keeps values as 32-bit floats. Throws `kSystem`.
  void scalar(std::string_view tag, double value, std::int64_t step, double wall_time);

  /// A text, shown as Markdown on TensorBoard's page "Text". Throws `kSystem`.
  void text(std::string_view tag, std::string_view text, std::int64_t step, double wall_time);

  /// Hands all events to the operating system, so that readers see them. Throws `kSystem`, naming the file.
  void flush() { file_.flush(); }

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return file_.path(); }

 private:
  void append(std::string_view event, double wall_time);

  AppendFile file_;
  double written_until_;  // wall time of the last flush by age
};

}  // namespace hasten::formats

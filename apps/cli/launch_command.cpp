#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>

#include <hasten/config/options.h>

#include "commands.h"

namespace hasten::cli {
namespace {

/// Takes the other spelling too: `--num_processes` is `--num-processes`. A value after `=` stays as it is.
std::string with_dashes(std::string word) {
  if (!word.starts_with("--")) return word;
  const auto end = std::find(word.begin(), word.end(), '=');
  std::replace(word.begin(), end, '_', '-');
  return word;
}

bool takes_value(const CLI::App& app, const std::string& word) {
  const auto* option = app.get_option_no_throw(word);
  return option != nullptr && option->get_expected_max() > 0;
}

}  // namespace

void describe_launch(CLI::App& app, launcher::LaunchOptions& options) {
  app.add_option("--num-processes", options.num_processes,
                 "How many processes (ranks) to run on this machine")
      ->capture_default_str()
      ->type_name("N");
  app.add_option_function<std::string>(
         "--mixed-precision",
         [&options](const std::string& name) {
           options.settings.mixed_precision = parse_precision(name, "--mixed-precision");
         },
         "What to compute in, where the program leaves it open: no, bf16 or fp16")
      ->type_name("NAME");
  app.add_flag("--cpu", options.settings.cpu, "Stay on the CPU though there is an accelerator");
  app.add_option("--main-process-port", options.main_process_port,
                 "Port of 127.0.0.1 where the ranks meet (default: a free one)")
      ->type_name("PORT");
  app.add_option_function<double>(
         "--grace-seconds",
         [&options](double seconds) {
           if (!std::isfinite(seconds) || seconds < 0 || seconds > 1e6) {
             throw CLI::ValidationError("--grace-seconds", "must lie between 0 and 1000000");
           }
           const auto grace =
               std::chrono::milliseconds(static_cast<std::int64_t>(std::llround(seconds * 1000)));
           options.grace_after_failure = grace;
           options.grace_after_signal = grace;
         },
         "From SIGTERM to SIGKILL (default: 5 when a rank failed, 30, to save, at a signal)")
      ->type_name("SECONDS");
  app.add_flag("--oversubscribe", options.oversubscribe, "Allow more than four processes for each core");
}

SplitArguments split_arguments(const CLI::App& app, const std::vector<std::string>& words) {
  SplitArguments split;
  std::size_t i = 0;
  while (i < words.size() && words[i].size() > 1 && words[i].front() == '-') {
    if (words[i] == "--") {
      ++i;
      break;
    }
    const auto word = with_dashes(words[i++]);
    split.own.push_back(word);
    if (takes_value(app, word) && i < words.size()) split.own.push_back(words[i++]);
  }
  split.command.assign(words.begin() + static_cast<std::ptrdiff_t>(i), words.end());
  return split;
}

}  // namespace hasten::cli

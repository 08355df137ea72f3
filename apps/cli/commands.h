#pragma once

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <string>
#include <vector>

#include <hasten/launcher/launch.h>

namespace hasten::cli {

/// Declares `launch`'s options on `app`, filling `options`: the one place that describes them.
void describe_launch(CLI::App& app, launcher::LaunchOptions& options);

/// The words of a command line, apart.
struct SplitArguments {
  std::vector<std::string> own{};      ///< options of the subcommand, spelled with dashes
  std::vector<std::string> command{};  ///< from the first word that is no option of ours, untouched
};

/// Splits `launch`'s words (without `launch`) at the program's name, or behind `--`. `app` tells which
/// options take a value.
[[nodiscard]] SplitArguments split_arguments(const CLI::App& app, const std::vector<std::string>& words);

/// `hasten env`: prints what this machine, this build and this environment give to a run.
void print_environment();

}  // namespace hasten::cli

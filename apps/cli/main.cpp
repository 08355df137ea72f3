#include <exception>
#include <memory>
#include <utility>

#include <hasten/base/log.h>
#include <hasten/base/version.h>

#include "commands.h"

namespace hasten::cli {
namespace {

constexpr int kUsageError = 2;

/// The help's first lines in our words: CLI11 does not know that the program's own arguments follow.
class Formatter : public CLI::Formatter {
 public:
  explicit Formatter(std::string usage) : usage_(std::move(usage)) { column_width(28); }
  std::string make_usage(const CLI::App*, std::string) const override { return "\nUsage: " + usage_ + "\n"; }

 private:
  std::string usage_;
};

int run(const std::vector<std::string>& words) {
  CLI::App app("Trains C++ programs on every machine that LibTorch runs on.");
  app.formatter(std::make_shared<Formatter>("hasten [--help] [--version] SUBCOMMAND ..."));
  app.set_help_flag("-h,--help", "Show this help");
  app.set_version_flag("--version", std::string("hasten ") + version(), "Show the version");
  app.require_subcommand(1);
  app.footer("`hasten SUBCOMMAND --help` says more.");

  launcher::LaunchOptions options;
  auto* launch =
      app.add_subcommand("launch", "Run a program in one or several processes that train together");
  launch->formatter(std::make_shared<Formatter>("hasten launch [OPTIONS] [--] PROGRAM [ARGS...]"));
  launch->footer(
      "What follows PROGRAM is the program's own. Options may be spelled with underscores too.\n"
      "A rank reads the terminal's input from /dev/null; other input goes to rank 0.\n\n"
      "Exit codes: 0 all ranks returned 0; that of the first rank that failed (128+n if signal n\n"
      "ended it, 1 if it aborted); 130, 143, 129 ended by SIGINT, SIGTERM, SIGHUP to the launcher;\n"
      "2 wrong options; 126 PROGRAM cannot be executed; 127 there is none; 1 anything else.");
  describe_launch(*launch, options);
  auto* env = app.add_subcommand("env", "Show what this machine, build and environment give to a run");
  env->formatter(std::make_shared<Formatter>("hasten env"));

  if (!words.empty() && !words.front().starts_with('-') && !launch->check_name(words.front()) &&
      !env->check_name(words.front())) {
    log::error(concat("[options] there is no subcommand '", words.front(),
                      "'. `hasten --help` lists what there is."));
    return kUsageError;
  }
  auto own = words;
  if (!words.empty() && words.front() == "launch") {
    auto split = split_arguments(*launch, {words.begin() + 1, words.end()});
    own = std::move(split.own);
    own.insert(own.begin(), "launch");
    options.command = std::move(split.command);
  }
  try {
    app.parse(std::vector<std::string>(own.rbegin(), own.rend()));  // it takes them last first
  } catch (const CLI::Success& request) {
    return app.exit(request);  // help or the version was asked for
  } catch (const CLI::ParseError& error) {
    log::error(concat("[options] ", error.what(), ". `hasten ", launch->parsed() ? "launch " : "",
                      "--help` lists what there is."));
    return kUsageError;
  }
  if (env->parsed()) print_environment();
  return launch->parsed() ? launcher::launch_program(options) : 0;
}

}  // namespace
}  // namespace hasten::cli

int main(int argc, char** argv) {
  try {
    return hasten::cli::run({argv + 1, argv + argc});
  } catch (const hasten::Error& error) {
    hasten::log::error(error.what());
    return hasten::launcher::exit_code_of(error);
  } catch (const std::exception& error) {
    hasten::log::error(error.what());
    return 1;
  }
}

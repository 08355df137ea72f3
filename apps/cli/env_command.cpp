#include <iomanip>
#include <iostream>
#include <sstream>
#include <string>
#include <string_view>
#include <sys/utsname.h>

#include <hasten/base/error.h>
#include <hasten/base/version.h>
#include <hasten/config/options.h>
#include <hasten/config/process.h>
#include <hasten/launcher/machine.h>

#include "commands.h"

namespace hasten::cli {
namespace {

#ifdef __clang__
constexpr std::string_view kCompiler = "clang++ " __clang_version__;
#else
constexpr std::string_view kCompiler = "g++ " __VERSION__;
#endif
constexpr std::string_view kOpen = "left to the program";

void print(std::string_view name, std::string_view value) {
  std::cout << std::left << std::setw(18) << name << value << '\n';
}

std::string gibibytes(std::uint64_t bytes) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(1) << static_cast<double>(bytes) / (1024.0 * 1024.0 * 1024.0)
       << " GiB";
  return text.str();
}

std::string describe(const config::Process& process) {
  auto text = concat("rank ", process.rank, " of ", process.world_size, ", local rank ", process.local_rank,
                     " of ", process.local_world_size);
  if (!process.main_address.empty())
    text += concat(", meeting at ", process.main_address, ":", process.main_port);
  return text + " (from " + process.source + ")";
}

/// What is wrong in the environment is part of the answer, not a failure of it.
template <class Read>
std::string or_error(Read read) {
  try {
    return read();
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace

void print_environment() {
  utsname system{};
  ::uname(&system);
  const auto machine = launcher::this_machine();
  print("hasten", version());
  print("LibTorch", HASTEN_TORCH_VERSION " (built against)");
  print("compiler", kCompiler);
  print("system", concat(system.sysname, " ", system.release, " ", system.machine));
  print("cores", concat(machine.cores, " usable of ", machine.cores_online));
  print("memory",
        concat(gibibytes(machine.memory_available), " available of ", gibibytes(machine.memory_total)));
  print("memory limit", machine.memory_limit ? gibibytes(*machine.memory_limit) : "none");
  print("process", or_error([] { return describe(config::process_from_environment()); }));
  print("mixed precision", or_error([] {
          const auto precision = config::settings_from_environment().mixed_precision;
          return std::string(precision ? name(*precision) : kOpen);
        }));
  print("device",
        or_error([] { return std::string(config::settings_from_environment().cpu ? "cpu" : kOpen); }));
}

}  // namespace hasten::cli

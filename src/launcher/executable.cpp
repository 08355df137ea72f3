#include "launcher/executable.h"

#include <filesystem>
#include <sstream>
#include <unistd.h>

#include <hasten/base/environment.h>
#include <hasten/base/error.h>

namespace hasten::launcher {
namespace {

namespace fs = std::filesystem;

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

bool may_execute(const fs::path& path) {
  return ::access(path.c_str(), X_OK) == 0;
}

[[noreturn]] void fail_not_executable(const fs::path& path, bool folder) {
  fail(ErrorCode::kFailedPrecondition, "launch", "'", path.string(), "' ",
       folder ? "is a folder. Name the program inside it."
              : concat("may not be executed. Allow it with `chmod +x ", path.string(),
                       "`, or name the interpreter before it."));
}

}  // namespace

std::string find_executable(const std::string& name) {
  require(!name.empty(), ErrorCode::kInvalidArgument, "launch",
          "the program's name is empty. Name a program.");
  if (name.find('/') != std::string::npos) {
    std::error_code ignored;
    require(fs::exists(name, ignored), ErrorCode::kNotFound, "launch", "there is no program '", name,
            "' (looked from ", fs::current_path(ignored).string(),
            "). Correct the path, or build the program.");
    if (!is_file(name) || !may_execute(name)) fail_not_executable(name, fs::is_directory(name, ignored));
    return name;
  }
  std::istringstream folders(environment::get("PATH").value_or("/usr/local/bin:/usr/bin:/bin"));
  fs::path refused;
  for (std::string folder; std::getline(folders, folder, ':');) {
    const auto path = fs::path(folder.empty() ? "." : folder) / name;
    if (!is_file(path)) continue;
    if (may_execute(path)) return path.string();
    if (refused.empty()) refused = path;
  }
  if (!refused.empty()) fail_not_executable(refused, false);
  const bool here = is_file(name);
  fail(ErrorCode::kNotFound, "launch", "there is no program '", name, "' in PATH. ",
       here ? concat("One lies in this folder: write ./", name, ".") : "Correct the name, or give its path.");
}

}  // namespace hasten::launcher

#include <mutex>
#include <set>
#include <string>
#include <tuple>

#include <hasten/base/once.h>

namespace hasten {

bool once(const std::source_location& where) {
  static std::mutex mutex;
  static std::set<std::tuple<std::string, std::uint_least32_t, std::uint_least32_t>> reached;
  const std::lock_guard lock(mutex);
  return reached.emplace(where.file_name(), where.line(), where.column()).second;
}

}  // namespace hasten

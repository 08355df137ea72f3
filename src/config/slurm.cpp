#include "config/slurm.h"

#include <charconv>

#include <hasten/base/error.h>

namespace hasten::config {
namespace {

[[noreturn]] void fail_list(std::string_view what, std::string_view text) {
  fail(ErrorCode::kInvalidArgument, "slurm", "cannot read the ", what, " '", text,
       "'. Set MASTER_ADDR and LOCAL_WORLD_SIZE, or correct the variable.");
}

/// Reads a number at the front of `text` and removes it; -1 when there is none.
int take_number(std::string_view& text) {
  int value = -1;
  const auto [stop, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc{} || value < 0) return -1;
  text.remove_prefix(static_cast<std::size_t>(stop - text.data()));
  return value;
}

bool take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

}  // namespace

std::string first_host(std::string_view host_list) {
  std::string host;
  for (std::size_t i = 0; i < host_list.size() && host_list[i] != ','; ++i) {
    if (host_list[i] == ']') fail_list("host list", host_list);
    if (host_list[i] != '[') {
      host += host_list[i];
      continue;
    }
    const auto close = host_list.find(']', i);
    if (close == std::string_view::npos) fail_list("host list", host_list);
    const auto range = host_list.substr(i + 1, close - i - 1);
    const auto first = range.substr(0, range.find_first_of("-,"));
    if (first.empty() || first.find('[') != std::string_view::npos) fail_list("host list", host_list);
    host += first;
    i = close;
  }
  if (host.empty()) fail_list("host list", host_list);
  return host;
}

std::vector<int> tasks_per_node(std::string_view text) {
  constexpr int kMostNodes = 1 << 20;
  std::vector<int> tasks;
  auto rest = text;
  do {
    const int count = take_number(rest);
    int nodes = 1;
    if (take(rest, "(x")) {
      nodes = take_number(rest);
      if (!take(rest, ")")) fail_list("tasks per node", text);
    }
    if (count < 1 || nodes < 1 || nodes > kMostNodes) fail_list("tasks per node", text);
    tasks.insert(tasks.end(), static_cast<std::size_t>(nodes), count);
  } while (take(rest, ","));
  if (!rest.empty()) fail_list("tasks per node", text);
  return tasks;
}

}  // namespace hasten::config

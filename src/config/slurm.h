#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace hasten::config {

/// The first host of a Slurm host list: `node[003-005,9],login` gives `node003`; several brackets in one name
/// are allowed. Throws `kInvalidArgument` for a list that is empty or whose brackets do not match.
[[nodiscard]] std::string first_host(std::string_view host_list);

/// Slurm's short form of the tasks on each node, written out: `2(x3),1` gives 2, 2, 2, 1. Throws
/// `kInvalidArgument` for anything else.
[[nodiscard]] std::vector<int> tasks_per_node(std::string_view text);

}  // namespace hasten::config

#pragma once

#include <exception>
#include <string_view>

namespace hasten::detail {

class Run;

/// Throws `kUnavailable`, with the operator, where the exception says that LibTorch has no fp16 form of it on
/// this run's device; else returns.
void require_operator(const Run& run, std::string_view operation, const std::exception& error);

}  // namespace hasten::detail

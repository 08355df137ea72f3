#pragma once

#include <string_view>

namespace hasten::detail {

class OptimizerRecord;
class Run;

/// What `AcceleratorOptions::debug` compares.
enum class Compared { kGradients, kWeights };

/// Throws `kMismatch`, on all ranks alike, unless every rank has the same bits in the gradients, or the
/// weights, of an optimizer's parameters.
void require_equal_on_all_ranks(const Run& run, const OptimizerRecord& record, Compared what);

}  // namespace hasten::detail

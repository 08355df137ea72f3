#pragma once

#include <memory>

#include <hasten/parallel/strategy.h>

namespace hasten::parallel {

/// One maker a strategy.
std::unique_ptr<Strategy> make_solo();
std::unique_ptr<Strategy> make_data_parallel(std::shared_ptr<comm::Group> group,
                                             const DataParallelOptions& options);

}  // namespace hasten::parallel

#include <hasten/comm/group.h>
#include <hasten/parallel/gradients.h>
#include <hasten/parallel/strategy.h>

#include "parallel/strategies.h"

namespace hasten::parallel {

at::Tensor Strategy::gradient_norm(const std::vector<at::Tensor>& gradients, double norm_type) const {
  return norm(gradients, norm_type);
}

bool Strategy::any_nonfinite(const at::Tensor& found) const {
  return found.item<float>() != 0;
}

std::unique_ptr<Strategy> make_strategy(std::shared_ptr<comm::Group> group,
                                        const DataParallelOptions& data_parallel) {
  if (group->size() == 1) return make_solo();
  return make_data_parallel(std::move(group), data_parallel);
}

}  // namespace hasten::parallel

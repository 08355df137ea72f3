#include <utility>

#include <hasten/base/error.h>
#include <hasten/data/permutation.h>
#include <hasten/data/random.h>

namespace hasten::data {

Permutation::Permutation(std::int64_t size, std::uint64_t seed, std::int64_t epoch) {
  require(size >= 0 && size <= (std::int64_t{1} << 32), ErrorCode::kInvalidArgument, "data::Permutation",
          "cannot shuffle ", size, " samples: the limit is 2^32. Divide the dataset, or turn shuffle off.");
  order_.resize(static_cast<std::size_t>(size));
  for (std::size_t i = 0; i < order_.size(); ++i) order_[i] = static_cast<std::uint32_t>(i);
  // A sample's number is never negative, so these draws are independent of every sample's own.
  Random random(seed, epoch, /*sample=*/-1);
  for (std::size_t left = order_.size(); left > 1; --left)
    std::swap(order_[left - 1],
              order_[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(left)))]);
}

}  // namespace hasten::data

#include <algorithm>

#include <hasten/base/error.h>
#include <hasten/data/shard.h>

namespace hasten::data {
namespace {

std::int64_t local_batch_size(const ShardOptions& options) {
  const std::int64_t size = options.batch_size;
  const std::int64_t processes = options.num_processes;
  require(size >= 1, ErrorCode::kInvalidArgument, "data::Shard", "the batch size is ", size,
          ". Give at least 1.");
  require(processes >= 1 && options.rank >= 0 && options.rank < processes, ErrorCode::kInvalidArgument,
          "data::Shard", "rank ", options.rank, " of ", processes,
          " processes does not exist. Give a rank from 0 to processes - 1.");
  require(options.size >= 0 && options.first >= 0 && options.first <= options.size,
          ErrorCode::kInvalidArgument, "data::Shard", "cannot start at sample ", options.first, " of ",
          options.size, ".");
  if (!options.split_batches) return size;
  if (size % processes != 0) {
    const std::int64_t below = size / processes * processes;
    const std::string lower = below > 0 ? concat(below, " or ") : "";
    fail(ErrorCode::kInvalidArgument, "data::Shard", "with split_batches a batch of ", size,
         " samples cannot be divided among ", processes, " processes. Set batch_size to ", lower,
         below + processes, ", or split_batches to false.");
  }
  return size / processes;
}

}  // namespace

Shard::Shard(const ShardOptions& options) : options_(options), batch_size_(local_batch_size(options)) {
  const std::int64_t left = options.size - options.first;
  const std::int64_t full_steps = left / global_batch_size();
  const std::int64_t rest = options.drop_last ? 0 : left % global_batch_size();
  steps_ = full_steps + (rest > 0 ? 1 : 0);
  const bool in_last = options.even_batches || rest > options.rank * batch_size_;
  batches_ = full_steps + (rest > 0 && in_last ? 1 : 0);
  remainder_ = rest > 0 ? rest : (full_steps > 0 ? global_batch_size() : 0);
}

std::int64_t Shard::samples() const noexcept {
  return steps_ == 0 ? 0 : (steps_ - 1) * global_batch_size() + remainder_;
}

void Shard::positions(std::int64_t batch, std::vector<std::int64_t>& out) const {
  require(batch >= 0 && batch < batches_, ErrorCode::kInvalidArgument, "data::Shard", "there is no batch ",
          batch, " among ", batches_, ".");
  const std::int64_t begin = options_.first + batch * global_batch_size() + options_.rank * batch_size_;
  const std::int64_t end =
      options_.even_batches ? begin + batch_size_ : std::min(begin + batch_size_, options_.size);
  out.resize(static_cast<std::size_t>(end - begin));
  // Past the end of the order it starts again, as often as a tiny order needs.
  std::int64_t position = begin < options_.size ? begin : begin % options_.size;
  for (std::int64_t& value : out) {
    if (position == options_.size) position = 0;
    value = position++;
  }
}

std::vector<std::int64_t> Shard::positions(std::int64_t batch) const {
  std::vector<std::int64_t> out;
  positions(batch, out);
  return out;
}

}  // namespace hasten::data

#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>

#include <hasten/tree/split.h>

namespace hasten::tree::detail {

at::Tensor cut(const at::Tensor& tensor, std::int64_t begin, std::int64_t end, std::int64_t length) {
  const at::Tensor part = tensor.narrow(0, begin, end - begin);
  const std::int64_t missing = length - (end - begin);
  if (missing <= 0 || tensor.size(0) == 0) return part;
  std::vector<std::int64_t> shape = tensor.sizes().vec();
  shape[0] = missing;
  return at::cat({part, tensor.narrow(0, tensor.size(0) - 1, 1).expand(shape)});
}

at::Tensor concatenate(const std::vector<at::Tensor>& parts, std::int64_t dim) {
  if (!parts.front().defined()) return parts.front();
  if (parts.front().dim() == 0) return at::stack(parts);
  const std::int64_t dimensions = parts.front().dim();
  const std::int64_t place = dim < 0 ? dim + dimensions : dim;
  require(place >= 0 && place < dimensions, ErrorCode::kInvalidArgument, "concatenate", "a tensor of ",
          dimensions, " dimensions has no dimension ", dim, ".");
  for (std::size_t i = 1; i < parts.size(); ++i) {
    std::vector<std::int64_t> shape = parts[i].sizes().vec();
    bool fits = static_cast<std::int64_t>(shape.size()) == dimensions;
    for (std::int64_t d = 0; fits && d < dimensions; ++d)
      fits = d == place || shape[static_cast<std::size_t>(d)] == parts.front().size(d);
    require(fits, ErrorCode::kMismatch, "concatenate", "batch 0 has a tensor of shape ",
            parts.front().sizes(), " where batch ", i, " has ", parts[i].sizes(),
            ". All dimensions but number ", dim, " must agree.");
  }
  return at::cat(parts, dim);
}

}  // namespace hasten::tree::detail

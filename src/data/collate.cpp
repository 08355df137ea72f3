#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>

#include <hasten/data/collate.h>

namespace hasten::data::detail {

at::Tensor stack(const std::vector<at::Tensor>& samples) {
  for (std::size_t i = 0; i < samples.size(); ++i) {
    require(
        samples[i].defined(), ErrorCode::kMismatch, "data::Stack", "sample ", i,
        " of a batch has an undefined tensor. Give every sample a tensor, or the loader a collate function.");
    require(samples[i].sizes() == samples[0].sizes(), ErrorCode::kMismatch, "data::Stack",
            "the samples of a batch have different shapes: ", samples[0].sizes(), " at 0 and ",
            samples[i].sizes(), " at ", i,
            ". Make them equal, or give the loader a collate function that pads.");
  }
  return at::stack(samples);
}

void fail_uneven(std::size_t sample, std::size_t length, std::size_t expected) {
  fail(ErrorCode::kMismatch, "data::Stack",
       "the samples of a batch have vectors of different lengths: ", expected, " at 0 and ", length, " at ",
       sample, ". Make them equal, or give the loader a collate function that pads.");
}

at::Tensor empty(c10::IntArrayRef sizes, at::ScalarType type) {
  return at::empty(sizes, at::TensorOptions(type));
}

}  // namespace hasten::data::detail

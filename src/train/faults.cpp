#include "train/faults.h"

#include <string>

#include <hasten/base/error.h>

#include "train/run.h"

/// LibTorch's refusals in words that name what the user gave.
namespace hasten::detail {
namespace {

std::string_view text_of(const std::exception& error) {
  const auto* libtorch = dynamic_cast<const c10::Error*>(&error);
  std::string_view text = libtorch != nullptr ? libtorch->what_without_backtrace() : error.what();
  while (text.ends_with('.') || text.ends_with('\n')) text.remove_suffix(1);
  return text;
}

/// What stands between two parts of a text; empty where it lacks them.
std::string_view between(std::string_view text, std::string_view before, std::string_view after) {
  const auto begin = text.find(before);
  if (begin == std::string_view::npos) return {};
  text.remove_prefix(begin + before.size());
  const auto end = text.find(after);
  return end == std::string_view::npos ? std::string_view() : text.substr(0, end);
}

/// The operator that a message says has no fp16 form; empty for other messages. ATen's kernels say
/// `"name" not implemented for 'Half'`, oneDNN that it has no descriptor for a primitive.
std::string_view operator_without_fp16(std::string_view text) {
  if (text.find("not implemented for 'Half'") != std::string_view::npos) return between(text, "\"", "\"");
  return between(text, "could not create a primitive descriptor for the ", " primitive");
}

}  // namespace

void require_operator(const Run& run, std::string_view operation, const std::exception& error) {
  if (run.precision != Precision::kFp16 || dynamic_cast<const Error*>(&error) != nullptr) return;
  const std::string_view text = text_of(error);
  const std::string_view name = operator_without_fp16(text);
  require(name.empty(), ErrorCode::kUnavailable, operation, "LibTorch's operator '", name,
          "' does not compute in fp16 on ", run.device, " (", text,
          "). Use bf16, or keep the module that calls it in fp32 with AcceleratorOptions::keep_fp32.");
}

void fail_forward(const ModelRecord& record, const std::exception& error,
                  const std::vector<at::Tensor>& inputs) {
  require_operator(*record.run, "forward", error);
  const bool blameless = dynamic_cast<const c10::Error*>(&error) == nullptr ||
                         dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
                         dynamic_cast<const c10::DistError*>(&error) != nullptr;
  if (blameless) throw;
  std::string given;
  for (const at::Tensor& input : inputs) {
    if (!given.empty()) given += ", ";
    given += input.defined() ? concat(input.scalar_type(), " ", input.sizes(), " on ", input.device())
                             : "an undefined tensor";
  }
  const at::Device device = record.run->device;
  fail(ErrorCode::kMismatch, "forward", text_of(error), ". The model is on ", device, " and was given ",
       given.empty() ? "no tensor" : given,
       ". Give it inputs of the shape and type that its layers take, on accelerator.device().");
}

}  // namespace hasten::detail

#include "parallel/ddp/sync_batch_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <torch/csrc/autograd/custom_function.h>

#include <hasten/base/error.h>

namespace hasten::parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

/// A vector over channels, shaped to be combined with {N, C, ...}.
at::Tensor over(const at::Tensor& channels, const at::Tensor& like) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(like.dim()), 1);
  shape[1] = channels.numel();
  return channels.view(shape);
}

/// {N, C, ...} summed to {C}.
at::Tensor per_channel(const at::Tensor& values, at::ScalarType type) {
  std::vector<std::int64_t> dims{0};
  for (std::int64_t dim = 2; dim < values.dim(); ++dim) dims.push_back(dim);
  return values.sum(dims, /*keepdim=*/false, type);
}

/// In which type the batch norm of an input is computed.
at::ScalarType working_type(const at::Tensor& input) {
  return input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

struct Statistics {
  at::Tensor mean;      // {C}, fp64
  at::Tensor variance;  // {C}, fp64, biased
  at::Tensor count;     // 0-d, elements a channel over all ranks
};

/// Of the batches of all ranks together, by joining each rank's count, mean and sum of squared deviations
/// (Chan, Golub and LeVeque, 1979), which loses no digits where the mean is large.
Statistics statistics(comm::Group& group, const at::Tensor& input) {
  const std::int64_t channels = input.size(1);
  const double count = static_cast<double>(input.numel()) / static_cast<double>(channels);
  const at::ScalarType type = working_type(input);
  const at::Tensor mean = per_channel(input, at::kDouble) / std::max(count, 1.0);
  const at::Tensor deviations =
      per_channel((input.to(type) - over(mean.to(type), input)).square(), at::kDouble);
  const at::Tensor mine =
      at::cat({mean, deviations, at::full({1}, count, mean.options())}).view({1, 2 * channels + 1});
  const at::Tensor all = group.gather(mine);
  const at::Tensor means = all.narrow(1, 0, channels);
  const at::Tensor counts = all.narrow(1, 2 * channels, 1);
  const at::Tensor total = counts.sum();
  // Only where the host can see the number without waiting.
  require(
      !total.is_cpu() || total.item<double>() > 1, ErrorCode::kInvalidArgument, "batch_norm",
      "the ranks together have one value a channel or none, and a variance needs two. Use larger batches, "
      "or evaluate.");
  const at::Tensor joined = (means * counts).sum(0) / total;
  const at::Tensor squares =
      all.narrow(1, channels, channels).sum(0) + (counts * (means - joined).square()).sum(0);
  return {joined, squares / total, total};
}

class SyncBatchNorm : public torch::autograd::Function<SyncBatchNorm> {
 public:
  static Variable forward(AutogradContext* context, const Variable& input, const Variable& weight,
                          const Variable& bias, const at::Tensor& running_mean, const at::Tensor& running_var,
                          double momentum, double eps, std::shared_ptr<comm::Group> group) {
    const Statistics all = statistics(*group, input);
    if (running_mean.defined()) {
      running_mean.mul_(1 - momentum).add_(all.mean.to(running_mean.scalar_type()), momentum);
      running_var.mul_(1 - momentum)
          .add_((all.variance * (all.count / (all.count - 1))).to(running_var.scalar_type()), momentum);
    }
    const at::ScalarType type = working_type(input);
    const at::Tensor inverse = (all.variance + eps).rsqrt();
    const at::Tensor normal =
        ((input.to(type) - over(all.mean.to(type), input)) * over(inverse.to(type), input));
    context->save_for_backward({normal, weight, inverse.to(type), all.count.to(type)});
    context->saved_data["group"] =
        c10::IValue::make_capsule(c10::make_intrusive<GroupHolder>(std::move(group)));
    at::Tensor output = normal;
    if (weight.defined()) output = output * over(weight.to(type), input);
    if (bias.defined()) output = output + over(bias.to(type), input);
    return output.to(input.scalar_type());
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor& normal = saved[0];
    const at::Tensor& weight = saved[1];
    const at::Tensor& inverse = saved[2];
    const at::Tensor& count = saved[3];
    const auto holder =
        c10::static_intrusive_pointer_cast<GroupHolder>(context->saved_data["group"].toCapsule());
    const at::Tensor gradient = gradients[0].to(normal.scalar_type());
    const at::Tensor of_bias = per_channel(gradient, gradient.scalar_type());
    const at::Tensor of_weight = per_channel(gradient * normal, gradient.scalar_type());
    const std::int64_t channels = of_bias.numel();
    const at::Tensor sums =
        holder->group->all_reduce(at::cat({of_bias, of_weight}), comm::ReduceOp::kSum) / count;
    at::Tensor scale = inverse;
    if (weight.defined()) scale = scale * weight.to(scale.scalar_type());
    const at::Tensor of_input = (gradient - over(sums.narrow(0, 0, channels), gradient) -
                                 normal * over(sums.narrow(0, channels, channels), gradient)) *
                                over(scale, gradient);
    const auto like_weight = [&](const at::Tensor& value) {
      return weight.defined() ? value.to(weight.scalar_type()) : at::Tensor();
    };
    return {of_input.to(gradients[0].scalar_type()),
            like_weight(of_weight),
            like_weight(of_bias),
            {},
            {},
            {},
            {},
            {}};
  }

 private:
  /// Keeps the group with the graph.
  struct GroupHolder : torch::CustomClassHolder {
    explicit GroupHolder(std::shared_ptr<comm::Group> held) : group(std::move(held)) {}
    std::shared_ptr<comm::Group> group;
  };
};

class SyncBatchNormHook final : public device::OperatorHook {
 public:
  explicit SyncBatchNormHook(std::shared_ptr<comm::Group> group) : group_(std::move(group)) {}

  bool call(const c10::OperatorHandle& op, std::vector<c10::IValue>& stack) override {
    if (op.operator_name() == instance_norm_) {  // it computes by batch norm
      op.callBoxed(stack);
      return true;
    }
    if (op.operator_name() != batch_norm_) return false;
    const std::size_t count = op.schema().arguments().size();
    const auto arguments = torch::jit::last(stack, count);
    if (!arguments[5].toBool()) return false;  // it evaluates
    const auto tensor = [&](std::size_t index) {
      return arguments[index].isTensor() ? arguments[index].toTensor() : at::Tensor();
    };
    const at::Tensor input = tensor(0);
    require(input.dim() >= 2, ErrorCode::kInvalidArgument, "batch_norm", "the input has shape ",
            input.sizes(), ", but must have a batch and a channel dimension.");
    const at::Tensor output = SyncBatchNorm::apply(input, tensor(1), tensor(2), tensor(3), tensor(4),
                                                   arguments[6].toDouble(), arguments[7].toDouble(), group_);
    torch::jit::drop(stack, count);
    torch::jit::push(stack, output);
    return true;
  }

 private:
  std::shared_ptr<comm::Group> group_;
  c10::OperatorName batch_norm_{"aten::batch_norm", ""};
  c10::OperatorName instance_norm_{"aten::instance_norm", ""};
};

}  // namespace

std::unique_ptr<device::OperatorHook> make_sync_batch_norm(std::shared_ptr<comm::Group> group) {
  return std::make_unique<SyncBatchNormHook>(std::move(group));
}

}  // namespace hasten::parallel

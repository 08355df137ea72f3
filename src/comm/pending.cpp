#include <memory>
#include <utility>

#include <ATen/core/grad_mode.h>

#include "comm/group_state.h"

namespace hasten::comm {

struct Pending::State {
  std::string_view name;
  c10::intrusive_ptr<c10d::Work> work;
  /// A pending call does not keep the group alive.
  std::weak_ptr<const bool> group_lives;
  std::weak_ptr<SharedSegment> segment;
};

void Pending::wait() {
  if (!state_) return;
  // Gloo would only notice when the time-out has passed.
  require(!state_->group_lives.expired() || state_->work->isCompleted(), ErrorCode::kFailedPrecondition,
          state_->name,
          "the group was destroyed before the call was done. Keep the group until every call has been waited "
          "for.");
  try {
    state_->work->wait();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    const auto segment = state_->segment.lock();
    Group::State::fail_from(state_->name, error, segment ? segment->lost() : std::vector<int>());
  }
  state_.reset();
}

template <class Start>
Pending Group::State::begin(std::string_view name, Start&& start) {
  try {
    return Pending(std::make_shared<Pending::State>(Pending::State{name, start(), lives, local->segment()}));
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    fail_from(name, error, lost_ranks());
  }
}

namespace {

void check_contiguous(std::string_view name, const char* what, const at::Tensor& tensor) {
  check_supported(name, tensor);
  require(tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg(), ErrorCode::kInvalidArgument, name,
          what, " ", describe(tensor.scalar_type(), tensor.sizes()),
          " is not contiguous. Pass contiguous() of it.");
}

void check_reduces_directly(std::string_view name, at::ScalarType type, ReduceOp op) {
  const bool known = type == at::kFloat || type == at::kDouble || type == at::kHalf ||
                     type == at::kBFloat16 || type == at::kByte || type == at::kChar || type == at::kInt ||
                     type == at::kLong;
  require(known && (op != ReduceOp::kMean || at::isFloatingType(type)), ErrorCode::kInvalidArgument, name,
          describe(type, {}), " cannot be reduced so asynchronously. Use all_reduce.");
}

void check_parts(std::string_view name, const at::Tensor& whole, const at::Tensor& part, int size) {
  require(whole.numel() == part.numel() * size && whole.scalar_type() == part.scalar_type() &&
              whole.device() == part.device(),
          ErrorCode::kInvalidArgument, name, "the whole ", describe(whole.scalar_type(), whole.sizes()),
          " is not ", size, " times the part ", describe(part.scalar_type(), part.sizes()), ".");
}

}  // namespace

Pending Group::all_reduce_async(const at::Tensor& tensor, ReduceOp op) {
  constexpr std::string_view kName = "all_reduce_async";
  check_contiguous(kName, "tensor", tensor);
  check_reduces_directly(kName, tensor.scalar_type(), op);
  state_->agree_if_asked(kName, Operation::kAllReduceAsync, static_cast<std::int64_t>(op), tensor);
  if (state_->size == 1 || tensor.numel() == 0) return {};
  std::vector<at::Tensor> tensors{tensor.detach()};
  c10d::AllreduceOptions options;
  options.reduceOp = c10d_op(op);
  return state_->begin(kName, [&] { return state_->backend_for(tensor)->allreduce(tensors, options); });
}

Pending Group::reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op) {
  constexpr std::string_view kName = "reduce_scatter";
  check_contiguous(kName, "output", output);
  check_contiguous(kName, "input", input);
  check_reduces_directly(kName, input.scalar_type(), op);
  check_parts(kName, input, output, state_->size);
  state_->agree_if_asked(kName, Operation::kReduceScatter, static_cast<std::int64_t>(op), input);
  at::Tensor to = output.detach().view({-1});
  at::Tensor from = input.detach().view({-1});
  if (state_->size == 1) to.copy_(from);
  if (state_->size == 1 || input.numel() == 0) return {};
  c10d::ReduceScatterOptions options;
  options.reduceOp = c10d_op(op);
  return state_->begin(kName,
                       [&] { return state_->backend_for(input)->_reduce_scatter_base(to, from, options); });
}

Pending Group::all_gather_into(const at::Tensor& output, const at::Tensor& input) {
  constexpr std::string_view kName = "all_gather_into";
  check_contiguous(kName, "output", output);
  check_contiguous(kName, "input", input);
  check_parts(kName, output, input, state_->size);
  state_->agree_if_asked(kName, Operation::kAllGatherInto, 0, input);
  if (input.numel() == 0) return {};
  at::Tensor to = byte_view(output.detach());
  at::Tensor from = byte_view(input.detach());
  if (state_->size == 1) {
    to.copy_(from);
    return {};
  }
  const c10d::AllgatherOptions options;
  return state_->begin(kName, [&] { return state_->backend_for(input)->_allgather_base(to, from, options); });
}

Pending Group::send(const at::Tensor& tensor, int to, int tag) {
  constexpr std::string_view kName = "send";
  check_contiguous(kName, "tensor", tensor);
  state_->check_other_rank(kName, to);
  if (tensor.numel() == 0) return {};
  std::vector<at::Tensor> tensors{byte_view(tensor.detach())};
  return state_->begin(kName, [&] { return state_->backend_for(tensor)->send(tensors, to, tag); });
}

Pending Group::recv(const at::Tensor& tensor, int from, int tag) {
  constexpr std::string_view kName = "recv";
  check_contiguous(kName, "tensor", tensor);
  state_->check_other_rank(kName, from);
  if (tensor.numel() == 0) return {};
  std::vector<at::Tensor> tensors{byte_view(tensor.detach())};
  return state_->begin(kName, [&] { return state_->backend_for(tensor)->recv(tensors, from, tag); });
}

}  // namespace hasten::comm

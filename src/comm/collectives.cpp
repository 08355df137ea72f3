#include <algorithm>
#include <cstring>
#include <limits>
#include <sstream>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>

#include <hasten/comm/collectives.h>
#include <hasten/device/device.h>

#include "comm/group_state.h"

namespace hasten::comm {
namespace {

std::string_view type_name(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return "float32";
    case at::kDouble:
      return "float64";
    case at::kHalf:
      return "float16";
    case at::kBFloat16:
      return "bfloat16";
    case at::kByte:
      return "uint8";
    case at::kUInt16:
      return "uint16";
    case at::kUInt32:
      return "uint32";
    case at::kUInt64:
      return "uint64";
    case at::kChar:
      return "int8";
    case at::kShort:
      return "int16";
    case at::kInt:
      return "int32";
    case at::kLong:
      return "int64";
    case at::kBool:
      return "bool";
    case at::kComplexHalf:
      return "complex32";
    case at::kComplexFloat:
      return "complex64";
    case at::kComplexDouble:
      return "complex128";
    default:
      return c10::toString(type);
  }
}

std::string_view op_name(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kMean:
      return "mean";
    case ReduceOp::kMax:
      return "max";
    case ReduceOp::kMin:
      return "min";
    case ReduceOp::kProduct:
      return "product";
  }
  return "?";
}

/// The values without autograd and lazy conjugation, contiguous; in memory of their own if `own`.
at::Tensor plain(const at::Tensor& tensor, bool own) {
  const at::Tensor values = tensor.detach().resolve_conj().resolve_neg().contiguous();
  return own && values.is_alias_of(tensor) ? values.clone() : values;
}

/// The type in which the back ends reduce a type that they do not know.
at::ScalarType reducible_type(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
    case at::kByte:
    case at::kChar:
    case at::kInt:
    case at::kLong:
    case at::kBool:
      return type;
    case at::kShort:
    case at::kUInt16:
    case at::kUInt32:
      return at::kLong;
    default:
      return at::isFloatingType(type) ? at::kFloat : at::ScalarType::Undefined;
  }
}

void check_reducible(std::string_view name, at::ScalarType type, ReduceOp op) {
  const bool adds = op == ReduceOp::kSum || op == ReduceOp::kMean;
  require(!at::isComplexType(type) || adds, ErrorCode::kInvalidArgument, name, "complex numbers have no ",
          op_name(op), " across ranks; sum and mean are supported.");
  require(at::isComplexType(type) || type == at::kUInt64 || reducible_type(type) != at::ScalarType::Undefined,
          ErrorCode::kInvalidArgument, name, "tensors of type ", type_name(type), " cannot be reduced.");
}

std::size_t byte_count(const Notice& notice) {
  std::size_t bytes = c10::elementSize(notice.scalar_type());
  for (const std::int64_t size : notice.shape()) bytes *= static_cast<std::size_t>(size);
  return bytes;
}

/// One number as a tensor's shape, so that notices carry it.
at::Tensor shape_of_bytes(const std::string& bytes) {
  return at::empty({static_cast<std::int64_t>(bytes.size())}, at::TensorOptions(at::kByte).device(at::kMeta));
}

}  // namespace

std::string describe(at::ScalarType type, at::IntArrayRef shape) {
  std::ostringstream out;
  out << type_name(type) << " {";
  for (std::size_t i = 0; i < shape.size(); ++i) out << (i > 0 ? ", " : "") << shape[i];
  out << "}";
  return out.str();
}

std::string Notice::text() const {
  switch (operation) {
    case Operation::kAllReduce:
      return concat("all_reduce (", op_name(static_cast<ReduceOp>(detail)), ") of ",
                    describe(scalar_type(), shape()));
    case Operation::kBroadcast:
      return concat("broadcast from ", detail, " of ", describe(scalar_type(), shape()));
    case Operation::kGather:
      return "gather of " + describe(scalar_type(), shape());
    case Operation::kGatherVaried:
      return "gather_varied of " + describe(scalar_type(), shape());
    case Operation::kGatherShapes:
      return "gather_shapes of " + describe(scalar_type(), shape());
    case Operation::kAllGatherBytes:
      return concat("all_gather_bytes of ", sizes[0]);
    case Operation::kBroadcastBytes:
      return concat("broadcast_bytes from ", detail);
    case Operation::kBarrier:
      return "barrier";
    case Operation::kAllReduceAsync:
      return concat("all_reduce_async (", op_name(static_cast<ReduceOp>(detail)), ") of ",
                    describe(scalar_type(), shape()));
    case Operation::kReduceScatter:
      return concat("reduce_scatter (", op_name(static_cast<ReduceOp>(detail)), ") of ",
                    describe(scalar_type(), shape()));
    case Operation::kAllGatherInto:
      return "all_gather_into of " + describe(scalar_type(), shape());
  }
  return "?";
}

void check_supported(std::string_view name, const at::Tensor& tensor) {
  require(tensor.defined(), ErrorCode::kInvalidArgument, name, "the tensor is undefined.");
  require(tensor.layout() == at::kStrided, ErrorCode::kInvalidArgument, name,
          "sparse tensors are not supported. Convert with to_dense().");
  require(!tensor.is_quantized(), ErrorCode::kInvalidArgument, name,
          "quantised tensors are not supported. Convert with dequantize().");
}

at::Tensor byte_view(const at::Tensor& contiguous) {
  return contiguous.view({-1}).view(at::kByte);
}

c10d::ReduceOp::RedOpType c10d_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return c10d::ReduceOp::SUM;
    case ReduceOp::kMean:
      return c10d::ReduceOp::AVG;
    case ReduceOp::kMax:
      return c10d::ReduceOp::MAX;
    case ReduceOp::kMin:
      return c10d::ReduceOp::MIN;
    case ReduceOp::kProduct:
      return c10d::ReduceOp::PRODUCT;
  }
  return c10d::ReduceOp::SUM;
}

// ---- reductions ----

void Group::State::reduce_in_place(std::string_view name, const at::Tensor& contiguous, ReduceOp op) {
  if (size == 1 || contiguous.numel() == 0) return;
  std::vector<at::Tensor> tensors{contiguous};
  c10d::AllreduceOptions reduce_options;
  reduce_options.reduceOp = c10d_op(op);
  complete(name, [&] { return backend_for(contiguous)->allreduce(tensors, reduce_options); });
}

at::Tensor Group::State::reduced(std::string_view name, const at::Tensor& tensor, ReduceOp op) {
  const at::ScalarType type = tensor.scalar_type();
  if (at::isComplexType(type)) {
    at::Tensor values = plain(tensor, true);
    reduce_in_place(name, at::view_as_real(values), op);
    return values;
  }
  if (type == at::kBool && op == ReduceOp::kSum) {
    at::Tensor values = plain(tensor, false).to(at::kLong);
    reduce_in_place(name, values, op);
    return values;
  }
  if (at::isIntegralType(type, true) && op == ReduceOp::kMean) {
    at::Tensor values = plain(tensor, false).to(at::kDouble);
    reduce_in_place(name, values, op);
    return values.to(at::kFloat);
  }
  if (type == at::kUInt64) {
    // As signed numbers these wrap around alike, and order alike once the top bit is turned.
    at::Tensor values = plain(tensor, true);
    const at::Tensor as_signed = values.view(at::kLong);
    const bool orders = op == ReduceOp::kMax || op == ReduceOp::kMin;
    constexpr std::int64_t kTopBit = std::numeric_limits<std::int64_t>::min();
    if (orders) as_signed.bitwise_xor_(kTopBit);
    reduce_in_place(name, as_signed, op);
    if (orders) as_signed.bitwise_xor_(kTopBit);
    return values;
  }
  const at::ScalarType working = reducible_type(type);
  at::Tensor values = plain(tensor, working == type);
  if (working != type) values = values.to(working);
  reduce_in_place(name, values, op);
  return values.to(type);
}

at::Tensor Group::all_reduce(const at::Tensor& tensor, ReduceOp op) {
  constexpr std::string_view kName = "all_reduce";
  const at::NoGradGuard no_grad;
  check_supported(kName, tensor);
  check_reducible(kName, tensor.scalar_type(), op);
  state_->agree(kName, Operation::kAllReduce, static_cast<std::int64_t>(op), tensor, Agreement::kTensors);
  return state_->reduced(kName, tensor, op);
}

void Group::all_reduce_(const at::Tensor& tensor, ReduceOp op) {
  constexpr std::string_view kName = "all_reduce_";
  const at::NoGradGuard no_grad;
  check_supported(kName, tensor);
  const at::ScalarType type = tensor.scalar_type();
  check_reducible(kName, type, op);
  const bool widens = type == at::kBool ? op == ReduceOp::kSum || op == ReduceOp::kMean
                                        : op == ReduceOp::kMean && at::isIntegralType(type, false);
  require(!widens, ErrorCode::kInvalidArgument, kName, "the ", op_name(op), " of ", type_name(type),
          " is of another type and cannot be stored in it. Use all_reduce.");
  state_->agree(kName, Operation::kAllReduce, static_cast<std::int64_t>(op), tensor, Agreement::kTensors);
  const bool direct =
      reducible_type(type) == type && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
  if (direct)
    state_->reduce_in_place(kName, tensor.detach(), op);
  else
    tensor.detach().copy_(state_->reduced(kName, tensor, op));
}

// ---- moving ----

void Group::State::broadcast_contiguous(std::string_view name, const at::Tensor& contiguous, int root) {
  if (size == 1 || contiguous.numel() == 0) return;
  std::vector<at::Tensor> tensors{byte_view(contiguous)};
  c10d::BroadcastOptions broadcast_options;
  broadcast_options.rootRank = root;
  complete(name, [&] { return backend_for(contiguous)->broadcast(tensors, broadcast_options); });
}

void Group::broadcast_(const at::Tensor& tensor, int root) {
  constexpr std::string_view kName = "broadcast_";
  const at::NoGradGuard no_grad;
  check_supported(kName, tensor);
  state_->check_rank(kName, "root", root);
  state_->agree(kName, Operation::kBroadcast, root, tensor, Agreement::kTensors);
  const at::Tensor values = plain(tensor, false);
  state_->broadcast_contiguous(kName, values, root);
  if (!values.is_alias_of(tensor)) tensor.detach().copy_(values);
}

at::Tensor Group::State::gather_bytes(std::string_view name, at::Tensor bytes) {
  at::Tensor all = at::empty({size, bytes.numel()}, bytes.options());
  if (size == 1) {
    all.copy_(bytes);
  } else if (bytes.numel() > 0) {
    at::Tensor flat = all.view({-1});
    complete(name,
             [&] { return backend_for(bytes)->_allgather_base(flat, bytes, c10d::AllgatherOptions()); });
  }
  return all;
}

at::Tensor Group::gather(const at::Tensor& tensor) {
  constexpr std::string_view kName = "gather";
  const at::NoGradGuard no_grad;
  check_supported(kName, tensor);
  state_->agree(
      kName, Operation::kGather, 0, tensor, Agreement::kTensors,
      "Tensors must have one shape and dtype on all ranks: use gather_varied, or pad_across first.");
  std::vector<std::int64_t> shape = tensor.sizes().vec();
  if (shape.empty()) shape.push_back(1);
  shape[0] *= state_->size;
  if (tensor.numel() == 0) return at::empty(shape, tensor.options().requires_grad(false));
  const at::Tensor bytes = state_->gather_bytes(kName, byte_view(plain(tensor, false)));
  return bytes.view({-1}).view(tensor.scalar_type()).view(shape);
}

std::vector<at::Tensor> Group::gather_varied(const at::Tensor& tensor) {
  constexpr std::string_view kName = "gather_varied";
  const at::NoGradGuard no_grad;
  check_supported(kName, tensor);
  const auto notices = state_->agree(kName, Operation::kGatherVaried, 0, tensor, Agreement::kOperation);
  std::size_t longest = 0;
  for (const Notice& notice : notices) longest = std::max(longest, byte_count(notice));
  at::Tensor mine =
      at::zeros({static_cast<std::int64_t>(longest)}, tensor.options().dtype(at::kByte).requires_grad(false));
  if (tensor.numel() > 0)
    mine.narrow(0, 0, static_cast<std::int64_t>(tensor.nbytes())).copy_(byte_view(plain(tensor, false)));
  const at::Tensor all = state_->gather_bytes(kName, mine);
  std::vector<at::Tensor> tensors;
  for (std::size_t rank = 0; rank < notices.size(); ++rank) {
    const Notice& notice = notices[rank];
    at::Tensor one = at::empty(notice.shape(), mine.options().dtype(notice.scalar_type()));
    const auto bytes = static_cast<std::int64_t>(byte_count(notice));
    if (bytes > 0) byte_view(one).copy_(all.select(0, static_cast<std::int64_t>(rank)).narrow(0, 0, bytes));
    tensors.push_back(one);
  }
  return tensors;
}

std::vector<std::vector<std::int64_t>> Group::gather_shapes(const at::Tensor& tensor,
                                                            std::string_view operation) {
  check_supported(operation, tensor);
  std::vector<std::vector<std::int64_t>> shapes;
  for (const Notice& notice :
       state_->agree(operation, Operation::kGatherShapes, 0, tensor, Agreement::kOperation))
    shapes.push_back(notice.shape().vec());
  return shapes;
}

std::vector<std::string> Group::all_gather_bytes(const std::string& bytes) {
  constexpr std::string_view kName = "all_gather_bytes";
  const auto notices =
      state_->agree(kName, Operation::kAllGatherBytes, 0, shape_of_bytes(bytes), Agreement::kOperation);
  std::size_t longest = 0;
  for (const Notice& notice : notices) longest = std::max(longest, byte_count(notice));
  std::string mine = bytes;
  mine.resize(longest);
  std::string all(longest * notices.size(), '\0');
  state_->exchange(kName, std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
  std::vector<std::string> parts;
  for (std::size_t rank = 0; rank < notices.size(); ++rank)
    parts.push_back(all.substr(rank * longest, byte_count(notices[rank])));
  return parts;
}

std::string Group::broadcast_bytes(const std::string& bytes, int root) {
  constexpr std::string_view kName = "broadcast_bytes";
  const at::NoGradGuard no_grad;
  state_->check_rank(kName, "root", root);
  const auto notices =
      state_->agree(kName, Operation::kBroadcastBytes, root, shape_of_bytes(bytes), Agreement::kOperation);
  const Notice& from = notices[static_cast<std::size_t>(root)];
  const at::Tensor values = at::empty(from.shape(), at::kByte);
  const bool mine = state_->rank == root;
  if (mine && !bytes.empty()) std::memcpy(values.data_ptr(), bytes.data(), bytes.size());
  state_->broadcast_contiguous(kName, values, root);
  return mine ? bytes : std::string(static_cast<const char*>(values.data_ptr()), values.nbytes());
}

void Group::barrier() {
  device::backend(state_->device).synchronize(device::index(state_->device));
  state_->agree("barrier", Operation::kBarrier, 0, at::Tensor(), Agreement::kTensors);
}

at::Tensor pad_tensor_across(Group& group, const at::Tensor& tensor, std::int64_t dim,
                             const at::Scalar& pad_index, bool pad_first) {
  const at::NoGradGuard no_grad;
  const auto shapes = group.gather_shapes(tensor, "pad_across");
  const std::int64_t place = dim < 0 ? dim + tensor.dim() : dim;
  if (place < 0 || place >= tensor.dim()) return tensor;
  std::int64_t longest = 0;
  for (const auto& shape : shapes)
    if (place < static_cast<std::int64_t>(shape.size()))
      longest = std::max(longest, shape[static_cast<std::size_t>(place)]);
  const std::int64_t length = tensor.size(place);
  if (length == longest) return tensor;
  std::vector<std::int64_t> shape = tensor.sizes().vec();
  shape[static_cast<std::size_t>(place)] = longest;
  at::Tensor padded = at::full(shape, pad_index, tensor.options().requires_grad(false));
  padded.narrow(place, pad_first ? longest - length : 0, length).copy_(tensor);
  return padded;
}

}  // namespace hasten::comm

#include <ATen/ops/empty.h>

#include <hasten/tree/bytes.h>

namespace hasten::tree::detail {
namespace {

constexpr std::int8_t kUndefined = -1;

/// Whether `write_tensor` sends tensors of the type: LibTorch throws for the size of what is none.
bool is_sent(at::ScalarType type) {
  return type < at::ScalarType::NumOptions && type != at::ScalarType::Undefined && !c10::isQIntType(type) &&
         (c10::isFloatingType(type) || c10::isComplexType(type) || c10::isIntegralType(type, true));
}

}  // namespace

void write_tensor(std::string& out, const at::Tensor& tensor) {
  if (!tensor.defined()) return write(out, kUndefined);
  require(tensor.layout() == at::kStrided && is_sent(tensor.scalar_type()), ErrorCode::kInvalidArgument,
          "to_bytes",
          "a sparse or quantised tensor cannot be sent. Convert with to_dense() or dequantize().");
  const at::Tensor plain = tensor.detach().resolve_conj().resolve_neg().to(at::kCPU).contiguous();
  write(out, static_cast<std::int8_t>(plain.scalar_type()));
  write(out, plain.sizes().vec());
  if (plain.numel() > 0) write_raw(out, plain.const_data_ptr(), plain.nbytes());
}

at::Tensor read_tensor(std::string_view& in) {
  const auto type = read_raw<std::int8_t>(in);
  if (type == kUndefined) return {};
  const auto scalar_type = static_cast<at::ScalarType>(type);
  require(type >= 0 && is_sent(scalar_type), ErrorCode::kCorruptData, "from_bytes",
          "there is no tensor of type number ", static_cast<int>(type), ".");
  std::vector<std::int64_t> shape;
  read(in, shape);
  std::size_t bytes = c10::elementSize(scalar_type);
  for (const std::int64_t size : shape) {
    require(size >= 0 && (size == 0 || bytes <= in.size() / static_cast<std::size_t>(size)),
            ErrorCode::kCorruptData, "from_bytes", "a tensor of shape ", at::IntArrayRef(shape), " has only ",
            in.size(), " bytes.");
    bytes *= static_cast<std::size_t>(size);
  }
  at::Tensor tensor = at::empty(shape, scalar_type);
  if (bytes > 0) std::memcpy(tensor.mutable_data_ptr(), take(in, bytes).data(), bytes);
  return tensor;
}

}  // namespace hasten::tree::detail

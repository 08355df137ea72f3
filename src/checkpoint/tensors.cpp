#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <hasten/checkpoint/tensors.h>
#include <hasten/device/scalar_type.h>
#include <hasten/formats/safetensors.h>

namespace hasten::checkpoint {
namespace {

// Python's safetensors package gives a file that has this entry to PyTorch's loaders without complaint.
constexpr const char* kFormatKey = "format";
constexpr const char* kFormatValue = "pt";

formats::TensorView view_of(const std::string& name, const at::Tensor& tensor) {
  return {.name = name,
          .dtype = device::to_dtype(tensor.scalar_type()),
          .shape = tensor.sizes().vec(),
          .bytes = {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()}};
}

at::Tensor tensor_of(const formats::TensorView& view, const std::shared_ptr<const files::Map>& map) {
  const auto options = at::TensorOptions().dtype(device::to_scalar_type(view.dtype));
  // An unpadded header leaves tensors misaligned, which operators do not expect.
  const bool aligned =
      reinterpret_cast<std::uintptr_t>(view.bytes.data()) % formats::size_of(view.dtype) == 0;
  if (view.bytes.empty() || !aligned) {
    at::Tensor copy = at::empty(view.shape, options);
    if (!view.bytes.empty()) std::memcpy(copy.mutable_data_ptr(), view.bytes.data(), view.bytes.size());
    return copy;
  }
  auto* data = const_cast<std::byte*>(view.bytes.data());
  return at::from_blob(data, view.shape, [map](void*) {}, options);
}

}  // namespace

void write_tensors(const std::filesystem::path& path, const params::NamedTensors& tensors,
                   const std::map<std::string, std::string>& metadata) {
  std::vector<at::Tensor> on_cpu;
  std::vector<formats::TensorView> views;
  on_cpu.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors) {
    on_cpu.push_back(tensor.detach().to(at::kCPU).contiguous());
    views.push_back(view_of(name, on_cpu.back()));
  }
  formats::write_safetensors(path, views, metadata);
}

params::NamedTensors read_tensors(const std::filesystem::path& path) {
  const formats::SafetensorsFile file(path);
  params::NamedTensors tensors;
  for (const formats::TensorView& view : file.tensors())
    tensors.emplace_back(view.name, tensor_of(view, file.map()));
  return tensors;
}

void write_model(const std::filesystem::path& path, const params::ParameterSet& model) {
  std::map<std::string, std::string> metadata(model.aliases().begin(), model.aliases().end());
  metadata.emplace(kFormatKey, kFormatValue);
  write_tensors(path, model.state(), metadata);
}

void read_model(const std::filesystem::path& path, const params::ParameterSet& model) {
  model.load(read_tensors(path), "'" + path.string() + "'");
}

}  // namespace hasten::checkpoint

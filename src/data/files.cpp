#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <hasten/base/error.h>
#include <hasten/data/files.h>
#include <hasten/device/scalar_type.h>
#include <hasten/formats/idx.h>
#include <hasten/formats/npy.h>

namespace hasten::data {
namespace {

/// A private, writable map of a whole file.
class PrivateMap {
 public:
  PrivateMap(const std::filesystem::path& path, std::size_t size) : size_(size) {
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) fail_system(errno, "data::load_npy", "cannot open '" + path.string() + "'");
    struct stat status{};
    const bool same = ::fstat(file, &status) == 0 && static_cast<std::size_t>(status.st_size) == size;
    // Pages get memory of their own only when they are written, so none is reserved for them.
    if (same) data_ = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file, 0);
    const int error = errno;
    ::close(file);
    require(same, ErrorCode::kCorruptData, "data::load_npy", "'", path.string(),
            "' was changed while it was opened.");
    if (data_ == MAP_FAILED) fail_system(error, "data::load_npy", "cannot map '" + path.string() + "'");
  }
  ~PrivateMap() {
    if (data_ != MAP_FAILED) ::munmap(data_, size_);
  }
  PrivateMap(const PrivateMap&) = delete;
  PrivateMap& operator=(const PrivateMap&) = delete;

  [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  void* data_ = MAP_FAILED;
  std::size_t size_;
};

std::vector<std::int64_t> column_major_strides(const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> strides(shape.size());
  std::int64_t step = 1;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    strides[i] = step;
    step *= shape[i];
  }
  return strides;
}

}  // namespace

at::Tensor load_npy(const std::filesystem::path& path) {
  const formats::NpyArray array = formats::read_npy(path);
  const at::TensorOptions options(device::to_scalar_type(array.dtype));
  const std::span<const std::byte> file = array.map->bytes();
  const auto offset = static_cast<std::size_t>(array.bytes.data() - file.data());
  const bool aligned = offset % formats::size_of(array.dtype) == 0;
  if (array.big_endian || !aligned || array.bytes.empty()) {
    at::Tensor tensor = at::empty(array.shape, options);
    formats::copy_row_major(array, {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()});
    return tensor;
  }
  auto map = std::make_shared<PrivateMap>(path, file.size());
  void* data = map->data() + offset;
  const auto release = [map = std::move(map)](void*) mutable { map.reset(); };
  if (!array.fortran_order) return at::from_blob(data, array.shape, release, options);
  return at::from_blob(data, array.shape, column_major_strides(array.shape), release, options);
}

at::Tensor load_idx(const std::filesystem::path& path) {
  const formats::IdxArray array = formats::read_idx(path);
  at::Tensor tensor = at::empty(array.shape, at::TensorOptions(device::to_scalar_type(array.dtype)));
  if (!array.bytes.empty()) std::memcpy(tensor.mutable_data_ptr(), array.bytes.data(), array.bytes.size());
  return tensor;
}

}  // namespace hasten::data

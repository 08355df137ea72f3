#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include <ATen/Dispatch.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>

#include <hasten/base/error.h>
#include <hasten/data/files.h>
#include <hasten/data/images.h>
#include <hasten/data/tensor_dataset.h>

namespace hasten::data {
namespace {

constexpr std::int64_t kBytes = 256;

struct Geometry {
  std::int64_t height;
  std::int64_t width;
  std::int64_t channels;

  [[nodiscard]] std::int64_t pixels() const { return height * width * channels; }
};

Geometry geometry_of(const at::Tensor& images) {
  return {images.size(1), images.size(2), images.dim() == 4 ? images.size(3) : 1};
}

/// How far the cut lies below and right of the original, and whether it is mirrored.
struct Placement {
  std::int64_t down = 0;
  std::int64_t right = 0;
  bool flip = false;
};

Placement draw(const ImageOptions& options, Random random) {
  Placement placement;
  if (const std::int64_t padding = options.crop_padding; padding > 0) {
    placement.down = random.below(2 * padding + 1) - padding;
    placement.right = random.below(2 * padding + 1) - padding;
  }
  if (options.flip) placement.flip = random.below(2) == 1;
  return placement;
}

/// One channel of one row: `values` of `count` source bytes that lie `from_step` apart, with black before and
/// after. Every loop is plain, so that the compiler can unroll it for the steps that it is told.
template <class Value, int kToStep, int kFromStep>
void write_row(Value* to, std::int64_t before, const std::uint8_t* from, std::int64_t count,
               std::int64_t after, const Value* values, std::int64_t to_step, std::int64_t from_step) {
  const std::int64_t to_by = kToStep != 0 ? kToStep : to_step;
  const std::int64_t from_by = kFromStep != 0 ? kFromStep : from_step;
  for (std::int64_t x = 0; x < before; ++x) to[x * to_by] = values[0];
  to += before * to_by;
  for (std::int64_t x = 0; x < count; ++x) to[x * to_by] = values[from[x * from_by]];
  to += count * to_by;
  for (std::int64_t x = 0; x < after; ++x) to[x * to_by] = values[0];
}

/// Writes one image, cut and mirrored, to its place in a batch.
template <class Value>
void write_image(Value* to, const std::uint8_t* from, const Geometry& size, Placement placement,
                 const Value* values, bool channels_last) {
  const auto [height, width, channels] = size;
  const std::int64_t to_step = channels_last ? channels : 1;
  const std::int64_t from_step = placement.flip ? -channels : channels;
  std::int64_t before = std::max<std::int64_t>(0, -placement.right);
  std::int64_t after = std::max<std::int64_t>(0, placement.right);
  const std::int64_t count = width - before - after;
  std::int64_t first = std::max<std::int64_t>(0, placement.right);
  if (placement.flip) {
    first += count - 1;
    std::swap(before, after);
  }
  const auto write = to_step == 1 && from_step == 1    ? write_row<Value, 1, 1>
                     : to_step == 1 && from_step == -1 ? write_row<Value, 1, -1>
                                                       : write_row<Value, 0, 0>;
  for (std::int64_t y = 0; y < height; ++y) {
    const std::int64_t source = y + placement.down;
    const bool black = source < 0 || source >= height;
    for (std::int64_t c = 0; c < channels; ++c) {
      Value* row = to + (channels_last ? y * width * channels + c : (c * height + y) * width);
      const Value* table = values + c * kBytes;
      if (black) {
        write(row, width, from, 0, 0, table, to_step, from_step);
      } else {
        write(row, before, from + (source * width + first) * channels + c, count, after, table, to_step,
              from_step);
      }
    }
  }
}

void check_images(const at::Tensor& images, const at::Tensor& labels) {
  require(images.defined() && labels.defined(), ErrorCode::kInvalidArgument, "data::ImageDataset",
          "images or labels are undefined tensors.");
  require(images.device().is_cpu() && images.scalar_type() == at::kByte &&
              (images.dim() == 3 || images.dim() == 4),
          ErrorCode::kInvalidArgument, "data::ImageDataset", "the images are ", images.toString(),
          " of shape ", images.sizes(), ". Give uint8 on the CPU of shape (N, H, W) or (N, H, W, C).");
  require(labels.dim() == 1 && at::isIntegralType(labels.scalar_type(), /*includeBool=*/false),
          ErrorCode::kInvalidArgument, "data::ImageDataset", "the labels are ", labels.toString(),
          " of shape ", labels.sizes(), ". Give integers of shape (N).");
  require(images.size(0) == labels.size(0), ErrorCode::kMismatch, "data::ImageDataset", "there are ",
          images.size(0), " images and ", labels.size(0), " labels. Give as many of both.");
}

void check_options(const ImageOptions& options, const Geometry& size, const at::Tensor& images) {
  const std::int64_t limit = std::min(size.height, size.width);
  require(options.crop_padding >= 0 && options.crop_padding <= limit, ErrorCode::kInvalidArgument,
          "data::ImageDataset", "crop_padding is ", options.crop_padding, " for images of shape ",
          images.sizes(), ". Give a number from 0 to ", limit, ".");
  const auto fits = [&](const std::vector<double>& values) {
    return values.size() == 1 || static_cast<std::int64_t>(values.size()) == size.channels;
  };
  require(fits(options.mean) && fits(options.std), ErrorCode::kInvalidArgument, "data::ImageDataset",
          "mean has ", options.mean.size(), " and std ", options.std.size(), " values for images of ",
          size.channels, " channels. Give one for each channel, or one for all.");
  for (const double value : options.std)
    require(value > 0, ErrorCode::kInvalidArgument, "data::ImageDataset", "std holds ", value,
            ". Give positive numbers.");
  constexpr std::array kTypes{at::kFloat, at::kBFloat16, at::kHalf, at::kDouble};
  require(std::find(kTypes.begin(), kTypes.end(), options.dtype) != kTypes.end(), ErrorCode::kInvalidArgument,
          "data::ImageDataset", "images cannot be made into ", c10::toString(options.dtype),
          ". Use Float, BFloat16, Half or Double.");
}

at::Tensor table_of_values(const ImageOptions& options, std::int64_t channels) {
  at::Tensor table = at::empty({channels, kBytes}, at::TensorOptions(at::kDouble));
  auto* out = table.mutable_data_ptr<double>();
  const auto of_channel = [](const std::vector<double>& values, std::int64_t channel) {
    return values[values.size() == 1 ? 0 : static_cast<std::size_t>(channel)];
  };
  for (std::int64_t c = 0; c < channels; ++c)
    for (std::int64_t byte = 0; byte < kBytes; ++byte)
      *out++ = (static_cast<double>(byte) / 255 - of_channel(options.mean, c)) / of_channel(options.std, c);
  return table.to(options.dtype);
}

std::filesystem::path find_file(const std::filesystem::path& folder, const std::string& name) {
  for (const char* ending : {"", ".gz"}) {
    std::filesystem::path path = folder / (name + ending);
    if (std::filesystem::exists(path)) return path;
  }
  fail(ErrorCode::kNotFound, "data::mnist", "there is no file '", (folder / name).string(),
       "', with or without .gz. Give the folder that has the four files; those of Fashion-MNIST are in the "
       "Debian package dataset-fashion-mnist.");
}

}  // namespace

ImageDataset::ImageDataset(at::Tensor images, at::Tensor labels, ImageOptions options)
    : options_(std::move(options)) {
  check_images(images, labels);
  const Geometry size = geometry_of(images);
  check_options(options_, size, images);
  images_ = images.contiguous();
  labels_ = labels.to(at::kCPU, at::kLong).contiguous();
  values_ = table_of_values(options_, size.channels);
}

ImageBatch ImageDataset::get_batch(Indices indices, const BatchContext& context) const {
  at::Tensor labels = detail::rows(labels_, indices, /*share=*/false);
  const Geometry size = geometry_of(images_);
  at::Tensor batch =
      at::empty({static_cast<std::int64_t>(indices.size()), size.channels, size.height, size.width},
                at::TensorOptions(options_.dtype)
                    .memory_format(options_.channels_last ? at::MemoryFormat::ChannelsLast
                                                          : at::MemoryFormat::Contiguous));
  const auto* from = images_.const_data_ptr<std::uint8_t>();
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, options_.dtype, "ImageDataset", [&] {
    auto* to = batch.mutable_data_ptr<scalar_t>();
    const auto* values = values_.const_data_ptr<scalar_t>();
    for (const std::int64_t index : indices) {
      write_image(to, from + index * size.pixels(), size, draw(options_, context.random(index)), values,
                  options_.channels_last);
      to += size.pixels();
    }
  });
  return {std::move(batch), std::move(labels)};
}

ImageDataset mnist(const std::filesystem::path& folder, bool train, ImageOptions options) {
  const std::string prefix = train ? "train" : "t10k";
  const std::filesystem::path images = find_file(folder, prefix + "-images-idx3-ubyte");
  const std::filesystem::path labels = find_file(folder, prefix + "-labels-idx1-ubyte");
  const at::Tensor pixels = load_idx(images);
  const at::Tensor classes = load_idx(labels);
  require(pixels.dim() == 3 && classes.dim() == 1 && pixels.size(0) == classes.size(0), ErrorCode::kMismatch,
          "data::mnist", "'", images.string(), "' has shape ", pixels.sizes(), " and '", labels.string(),
          "' has shape ", classes.sizes(), ". They must be (N, H, W) and (N): take both from one set.");
  return {pixels, classes, std::move(options)};
}

ImageDataset fashion_mnist(const std::filesystem::path& folder, bool train, ImageOptions options) {
  if (options.mean == std::vector<double>{0} && options.std == std::vector<double>{1}) {
    options.mean = {0.2860};
    options.std = {0.3530};
  }
  ImageDataset set = mnist(folder, train, std::move(options));
  const auto* labels = set.labels().const_data_ptr<std::int64_t>();
  const bool labels_fit =
      std::all_of(labels, labels + set.size(), [](std::int64_t l) { return l >= 0 && l < 10; });
  require(set.images().size(1) == 28 && set.images().size(2) == 28 && labels_fit, ErrorCode::kMismatch,
          "data::fashion_mnist", "the images of '", folder.string(), "' have shape ", set.images().sizes(),
          labels_fit ? "" : " and labels outside 0 to 9",
          ". Give Fashion-MNIST's folder, or use data::mnist.");
  return set;
}

}  // namespace hasten::data

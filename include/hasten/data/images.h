#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include <ATen/core/Tensor.h>

#include <hasten/data/dataset.h>

namespace hasten::data {

/// What happens to the images of a batch. New fields are appended, since their order is part of the
/// interface.
struct ImageOptions {
  /// Pad each side by so many black pixels, then cut out a part of the original size at a random place.
  std::int64_t crop_padding = 0;
  /// Mirror every second image, at random, left to right.
  bool flip = false;
  /// Of each channel, or one for all, of pixels scaled to [0, 1]; the result is (pixel / 255 - mean) / std.
  std::vector<double> mean = {0};
  std::vector<double> std = {1};
  /// Lay the batch out with channels last in memory; its shape stays (N, C, H, W).
  bool channels_last = false;
  /// float32, bfloat16, float16 or float64.
  at::ScalarType dtype = at::kFloat;
};

struct ImageBatch {
  at::Tensor images;  ///< (N, C, H, W)
  at::Tensor labels;  ///< (N), int64
};

/// Images of bytes in memory or in a mapped file, made into a batch in one pass: cut, mirrored, normalised.
/// The random choices depend on seed, epoch and sample alone; an image's draws are: row of the cut, column of
/// the cut, mirror, each only if asked for.
class ImageDataset {
 public:
  /// `images`: uint8 on the CPU, (N, H, W) or (N, H, W, C). `labels`: integers, (N). Throws
  /// `kInvalidArgument` or `kMismatch`, with the shapes, for anything else and for options that do not fit
  /// the images.
  ImageDataset(at::Tensor images, at::Tensor labels, ImageOptions options = {});

  [[nodiscard]] std::int64_t size() const { return images_.size(0); }
  [[nodiscard]] ImageBatch get_batch(Indices indices, const BatchContext& context) const;

  [[nodiscard]] const at::Tensor& images() const noexcept { return images_; }
  [[nodiscard]] const at::Tensor& labels() const noexcept { return labels_; }
  [[nodiscard]] const ImageOptions& options() const noexcept { return options_; }
  /// The same images with other options: training and evaluation can share them.
  [[nodiscard]] ImageDataset with(ImageOptions options) const {
    return {images_, labels_, std::move(options)};
  }

 private:
  at::Tensor images_;
  at::Tensor labels_;
  ImageOptions options_;
  at::Tensor values_;  // (C, 256): the result for each byte, in the batch's type
};

/// A set in MNIST's files: `train-images-idx3-ubyte` and `train-labels-idx1-ubyte`, or those that begin with
/// `t10k` when `train` is false, with or without `.gz`. Fashion-MNIST, EMNIST and KMNIST come in them too.
/// Throws `kNotFound`, naming the file, or what `load_idx` and `ImageDataset` throw.
[[nodiscard]] ImageDataset mnist(const std::filesystem::path& folder, bool train, ImageOptions options = {});

/// Fashion-MNIST (Xiao, Rasul, Vollgraf, 2017): `mnist`, with its mean 0.2860 and deviation 0.3530 where
/// `options` leaves them at 0 and 1, and a check that the images are 28 x 28 and the labels 0 to 9.
[[nodiscard]] ImageDataset fashion_mnist(const std::filesystem::path& folder, bool train,
                                         ImageOptions options = {});

}  // namespace hasten::data

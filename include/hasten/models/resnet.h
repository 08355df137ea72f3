#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

/// Ready networks whose parameters and buffers bear the names that Python gives them, so that weights pass
/// between the two languages. Names, shapes and the order of both follow torchvision.
///
/// This header is not part of <hasten/hasten.h>: it needs `torch::nn::Module`, which takes seconds to parse.
namespace hasten::models {

/// What tells one residual network from another (He et al., "Deep Residual Learning for Image
/// Recognition", 2015).
struct ResNetPlan {
  /// Blocks of each stage; every stage but the first halves height and width.
  std::vector<std::int64_t> blocks = {};
  /// Channels of the stem and the first stage; each later stage doubles them.
  std::int64_t width = 64;
  /// A block is 1x1, 3x3, 1x1 convolutions with four times the channels at its end, instead of two 3x3.
  bool bottleneck = false;
  /// The stem is one 3x3 convolution of stride 1, for images of about 32x32; otherwise 7x7 of stride 2 and a
  /// max-pool.
  bool small_images = false;
  /// Where a block changes the shape, its shortcut takes every second pixel and pads with zero channels (the
  /// paper's option A, free of parameters), instead of a 1x1 convolution with batch norm (option B).
  bool padded_shortcut = false;
  /// The name of the last, linear layer.
  std::string head = "fc";
  std::int64_t classes = 1000;
  std::int64_t in_channels = 3;
};

/// A residual network for images. Convolutions start from He's normal distribution over their outputs, batch
/// norms from one and zero. On the CPU the same seed gives the weights that torchvision gives in Python.
class ResNetImpl : public torch::nn::Cloneable<ResNetImpl> {
 public:
  /// Throws `kInvalidArgument` for a plan without blocks or with a number below 1.
  explicit ResNetImpl(ResNetPlan plan);

  /// Class scores, [N, classes], of images, [N, in_channels, H, W]. Works in any memory format and under
  /// autocast. Throws `kMismatch` for another shape.
  at::Tensor forward(at::Tensor images);

  /// Makes all layers anew; called by the constructor and by `clone`.
  void reset() override;

  [[nodiscard]] const ResNetPlan& plan() const { return plan_; }

 private:
  struct Layers;

  ResNetPlan plan_;
  std::shared_ptr<Layers> layers_;
};

/// Holds a residual network of any plan. `ResNet net = nullptr` holds none yet.
class ResNet : public torch::nn::ModuleHolder<ResNetImpl> {
 public:
  using torch::nn::ModuleHolder<ResNetImpl>::ModuleHolder;
};

/// Options of the networks for ordinary photographs.
struct ResNetOptions {
  std::int64_t classes = 1000;
  std::int64_t in_channels = 3;
  /// For images of about 32x32: a 3x3 stem of stride 1 and no max-pool, so that the first stage sees full
  /// size.
  bool small_images = false;
};

/// torchvision's `resnet18`, 11.7 million parameters with 1000 classes.
class ResNet18 : public ResNet {
 public:
  explicit ResNet18(std::int64_t classes = 1000);
  explicit ResNet18(const ResNetOptions& options);
};

/// torchvision's `resnet34`, 21.8 million parameters with 1000 classes.
class ResNet34 : public ResNet {
 public:
  explicit ResNet34(std::int64_t classes = 1000);
  explicit ResNet34(const ResNetOptions& options);
};

/// torchvision's `resnet50`, 25.6 million parameters with 1000 classes. As there, the 3x3 convolution of a
/// block carries its stride.
class ResNet50 : public ResNet {
 public:
  explicit ResNet50(std::int64_t classes = 1000);
  explicit ResNet50(const ResNetOptions& options);
};

/// The 20-layer network for 32x32 images of the paper's section 4.2: three stages of 16, 32 and 64 channels,
/// padded shortcuts (option A, as there), 0.27 million parameters. Its last layer is named `linear` and the
/// zero channels of a shortcut stand half before and half behind, as in the usual PyTorch form of these
/// networks.
class ResNet20 : public ResNet {
 public:
  explicit ResNet20(std::int64_t classes = 10, std::int64_t in_channels = 3);
};

/// `ResNet20` with 56 layers, 0.85 million parameters.
class ResNet56 : public ResNet {
 public:
  explicit ResNet56(std::int64_t classes = 10, std::int64_t in_channels = 3);
};

}  // namespace hasten::models

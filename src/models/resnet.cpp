#include <algorithm>
#include <utility>

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/max_pool2d.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <hasten/base/error.h>
#include <hasten/models/resnet.h>

namespace hasten::models {

namespace nn = torch::nn;

namespace {

/// A convolution without bias and the batch norm behind it.
struct ConvNorm {
  nn::Conv2d conv = nullptr;
  nn::BatchNorm2d norm = nullptr;

  at::Tensor operator()(const at::Tensor& x) { return norm(conv(x)); }
};

struct ConvShape {
  std::int64_t in = 0;
  std::int64_t out = 0;
  std::int64_t kernel = 0;
  std::int64_t stride = 1;
};

ConvNorm make_conv_norm(const ConvShape& shape) {
  return {nn::Conv2d(nn::Conv2dOptions(shape.in, shape.out, shape.kernel)
                         .stride(shape.stride)
                         .padding(shape.kernel / 2)
                         .bias(false)),
          nn::BatchNorm2d(shape.out)};
}

/// Registers the pair as conv1, bn1, or whatever its number is.
ConvNorm add_conv_norm(nn::Module& owner, int number, const ConvShape& shape) {
  ConvNorm pair = make_conv_norm(shape);
  owner.register_module("conv" + std::to_string(number), pair.conv);
  owner.register_module("bn" + std::to_string(number), pair.norm);
  return pair;
}

struct BlockShape {
  std::int64_t in = 0;
  std::int64_t width = 0;
  std::int64_t stride = 1;
  bool bottleneck = false;
  bool padded_shortcut = false;

  [[nodiscard]] std::int64_t out() const { return bottleneck ? 4 * width : width; }

  [[nodiscard]] std::vector<ConvShape> convolutions() const {
    if (!bottleneck) return {{in, width, 3, stride}, {width, width, 3}};
    return {{in, width, 1}, {width, width, 3, stride}, {width, out(), 1}};
  }
};

/// The residual block: convolutions, and a shortcut around them.
class BlockImpl : public nn::Cloneable<BlockImpl> {
 public:
  explicit BlockImpl(const BlockShape& shape) : shape_(shape) { BlockImpl::reset(); }

  void reset() override {
    pairs_.clear();
    downsample_ = nullptr;
    const bool projects = changes_shape() && !shape_.padded_shortcut;
    // Made first and registered last, as torchvision does: so one seed gives both the same weights.
    if (projects) {
      const ConvNorm pair = make_conv_norm({shape_.in, shape_.out(), 1, shape_.stride});
      downsample_ = nn::Sequential(pair.conv, pair.norm);
    }
    for (const ConvShape& convolution : shape_.convolutions())
      pairs_.push_back(add_conv_norm(*this, static_cast<int>(pairs_.size()) + 1, convolution));
    if (projects) register_module("downsample", downsample_);
  }

  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = x;
    for (ConvNorm& pair : pairs_) {
      y = pair(y);
      // In place: a batch norm's backward needs its input only.
      if (&pair != &pairs_.back()) y.relu_();
    }
    return y.add_(shortcut(x)).relu_();
  }

 private:
  [[nodiscard]] bool changes_shape() const { return shape_.stride != 1 || shape_.in != shape_.out(); }

  at::Tensor shortcut(const at::Tensor& x) {
    if (!changes_shape()) return x;
    if (!shape_.padded_shortcut) return downsample_->forward(x);
    const std::int64_t missing = shape_.out() - shape_.in;
    const at::Tensor taken = x.slice(2, 0, {}, shape_.stride).slice(3, 0, {}, shape_.stride);
    return at::constant_pad_nd(taken, {0, 0, 0, 0, missing / 2, missing - missing / 2});
  }

  BlockShape shape_;
  std::vector<ConvNorm> pairs_;
  nn::Sequential downsample_ = nullptr;
};
TORCH_MODULE(Block);

ResNetPlan photograph_plan(std::vector<std::int64_t> blocks, bool bottleneck, const ResNetOptions& options) {
  return {.blocks = std::move(blocks),
          .bottleneck = bottleneck,
          .small_images = options.small_images,
          .classes = options.classes,
          .in_channels = options.in_channels};
}

ResNetPlan cifar_plan(std::int64_t blocks, std::int64_t classes, std::int64_t in_channels) {
  return {.blocks = {blocks, blocks, blocks},
          .width = 16,
          .small_images = true,
          .padded_shortcut = true,
          .head = "linear",
          .classes = classes,
          .in_channels = in_channels};
}

}  // namespace

struct ResNetImpl::Layers {
  ConvNorm stem;
  std::vector<nn::Sequential> stages;
  nn::Linear head = nullptr;
};

ResNetImpl::ResNetImpl(ResNetPlan plan) : plan_(std::move(plan)) {
  require(!plan_.blocks.empty() && std::ranges::min(plan_.blocks) >= 1, ErrorCode::kInvalidArgument, "ResNet",
          "every stage needs at least one block, got ", plan_.blocks,
          ". Give ResNetPlan::blocks one number a stage.");
  require(std::min({plan_.width, plan_.classes, plan_.in_channels}) >= 1, ErrorCode::kInvalidArgument,
          "ResNet", "width, classes and in_channels must be at least 1, got ", plan_.width, ", ",
          plan_.classes, " and ", plan_.in_channels,
          ". Give the number of classes and of image channels that the data has.");
  ResNetImpl::reset();
  for (const auto& module : modules(/*include_self=*/false)) {
    if (auto* conv = module->as<nn::Conv2d>())
      nn::init::kaiming_normal_(conv->weight, 0.0, torch::kFanOut, torch::kReLU);
  }
}

void ResNetImpl::reset() {
  layers_ = std::make_shared<Layers>();
  const ConvShape stem = plan_.small_images ? ConvShape{plan_.in_channels, plan_.width, 3, 1}
                                            : ConvShape{plan_.in_channels, plan_.width, 7, 2};
  layers_->stem = add_conv_norm(*this, 1, stem);
  BlockShape shape{.in = plan_.width,
                   .width = plan_.width,
                   .bottleneck = plan_.bottleneck,
                   .padded_shortcut = plan_.padded_shortcut};
  for (const std::int64_t count : plan_.blocks) {
    nn::Sequential stage;
    for (std::int64_t block = 0; block < count; ++block) {
      stage->push_back(Block(shape));
      shape.in = shape.out();
      shape.stride = 1;
    }
    layers_->stages.push_back(register_module("layer" + std::to_string(layers_->stages.size() + 1), stage));
    shape.width *= 2;
    shape.stride = 2;
  }
  layers_->head = register_module(plan_.head, nn::Linear(shape.in, plan_.classes));
}

at::Tensor ResNetImpl::forward(at::Tensor images) {
  require(images.dim() == 4 && images.size(1) == plan_.in_channels, ErrorCode::kMismatch, "ResNet",
          "the images have shape ", images.sizes(), ", expected [N, ", plan_.in_channels,
          ", H, W]. Reshape them, or make the network with the in_channels that the images have.");
  at::Tensor x = layers_->stem(images).relu_();
  if (!plan_.small_images) x = at::max_pool2d(x, /*kernel_size=*/3, /*stride=*/2, /*padding=*/1);
  for (nn::Sequential& stage : layers_->stages) x = stage->forward(x);
  return layers_->head(x.mean({2, 3}));
}

ResNet18::ResNet18(std::int64_t classes) : ResNet18(ResNetOptions{.classes = classes}) {}
ResNet18::ResNet18(const ResNetOptions& options) : ResNet(photograph_plan({2, 2, 2, 2}, false, options)) {}

ResNet34::ResNet34(std::int64_t classes) : ResNet34(ResNetOptions{.classes = classes}) {}
ResNet34::ResNet34(const ResNetOptions& options) : ResNet(photograph_plan({3, 4, 6, 3}, false, options)) {}

ResNet50::ResNet50(std::int64_t classes) : ResNet50(ResNetOptions{.classes = classes}) {}
ResNet50::ResNet50(const ResNetOptions& options) : ResNet(photograph_plan({3, 4, 6, 3}, true, options)) {}

ResNet20::ResNet20(std::int64_t classes, std::int64_t in_channels)
    : ResNet(cifar_plan(3, classes, in_channels)) {}

ResNet56::ResNet56(std::int64_t classes, std::int64_t in_channels)
    : ResNet(cifar_plan(9, classes, in_channels)) {}

}  // namespace hasten::models

#include "parallel/ddp/compression.h"

#include <map>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>

#include <hasten/base/error.h>

namespace hasten::parallel {
namespace {

using FuturePointer = c10::intrusive_ptr<c10::ivalue::Future>;

FuturePointer completed(const at::Tensor& result) {
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors());
  future->markCompleted(c10::IValue(std::vector<at::Tensor>{result}));
  return future;
}

/// Gradients in 16 bits. They are divided before they are converted, so that no sum overflows.
class Cast final : public Compression {
 public:
  Cast(std::shared_ptr<comm::Group> group, at::ScalarType type)
      : Compression(std::move(group)), type_(type) {}

  FuturePointer runHook(c10d::GradBucket& bucket) override {
    const at::NoGradGuard no_grad;
    const at::Tensor buffer = bucket.getBuffer();
    if (buffer.is_sparse() || buffer.element_size() <= 2) return average(buffer);
    const at::Tensor low = (buffer / group_->size()).to(type_);
    std::vector<at::Tensor> tensors{low};
    return group_->process_group()->allreduce(tensors)->getFuture()->then(
        [buffer, low](c10::ivalue::Future& sent) {
          if (sent.hasError()) std::rethrow_exception(sent.exception_ptr());
          buffer.copy_(low);
          return c10::IValue(std::vector<at::Tensor>{buffer});
        },
        c10::ListType::ofTensors());
  }

 private:
  at::ScalarType type_;
};

/// Vogels, Karimireddy and Jaggi, "PowerSGD" (arXiv:1905.13727): of a matrix of gradients M = G + E, with E
/// what earlier steps left out, the ranks agree on the factors of an approximation P Q^T of low rank, by one
/// step of the power method that begins with the last step's Q.
class PowerSgd final : public Compression {
 public:
  PowerSgd(std::shared_ptr<comm::Group> group, const PowerSgdOptions& options, ParameterNames names)
      : Compression(std::move(group)), options_(options), names_(std::move(names)) {
    require(options.rank >= 1 && options.start_step >= 0 && options.least_saving >= 1,
            ErrorCode::kInvalidArgument, "data_parallel", "power_sgd has rank ", options.rank,
            ", start_step ", options.start_step, " and least_saving ", options.least_saving,
            ". Set the rank and least_saving to 1 or more, and start_step to 0 or more.");
  }

  FuturePointer runHook(c10d::GradBucket& bucket) override {
    const at::NoGradGuard no_grad;
    const at::Tensor buffer = bucket.getBuffer();
    if (bucket.getIndex() == 0) ++step_;
    if (step_ <= options_.start_step || buffer.is_sparse()) return average(buffer);

    std::vector<at::Tensor> plain;
    std::vector<Matrix> matrices;
    const auto gradients = bucket.getGradients();
    const auto parameters = bucket.getParameters();
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (saves(gradients[i])) {
        matrices.push_back(begin(gradients[i], names_.at(parameters[i].unsafeGetTensorImpl())));
      } else {
        plain.push_back(gradients[i]);
      }
    }
    average_together(plain);
    if (!matrices.empty()) approximate(matrices);
    return completed(buffer);
  }

  [[nodiscard]] params::NamedTensors state() const override {
    params::NamedTensors all{{"step", at::tensor({step_}, at::kLong)}};
    for (const auto& [name, memory] : memories_) {
      all.emplace_back(name + "/error", memory.error);
      all.emplace_back(name + "/q", memory.q);
    }
    return all;
  }

  void load_state(const params::NamedTensors& state) override {
    memories_.clear();
    for (const auto& [key, tensor] : state) {
      const auto slash = key.rfind('/');
      if (slash == std::string::npos) {
        step_ = tensor.item<std::int64_t>();
      } else {
        Memory& memory = memories_[key.substr(0, slash)];
        (key.substr(slash) == "/q" ? memory.q : memory.error) = tensor.clone();
      }
    }
  }

 private:
  /// What is kept of a parameter: what was left out so far, and the last right factor.
  struct Memory {
    at::Tensor error;
    at::Tensor q;
  };
  struct Matrix {
    at::Tensor gradient;  // a view of the bucket
    at::Tensor values;    // {rows, columns}, with the error added, fp32
    Memory* memory;
    at::Tensor p;
  };

  [[nodiscard]] std::int64_t rank_of(const at::Tensor& gradient) const {
    const std::int64_t rows = gradient.size(0);
    return std::min({options_.rank, rows, gradient.numel() / rows});
  }

  /// Whether the factors are that much smaller than the gradient.
  [[nodiscard]] bool saves(const at::Tensor& gradient) const {
    if (gradient.dim() < 2 || gradient.numel() == 0 || gradient.is_complex()) return false;
    const std::int64_t rows = gradient.size(0);
    const std::int64_t columns = gradient.numel() / rows;
    return static_cast<double>((rows + columns) * rank_of(gradient)) * options_.least_saving <
           static_cast<double>(rows * columns);
  }

  Matrix begin(const at::Tensor& gradient, const std::string& name) {
    Memory& memory = memories_[name];
    const std::int64_t rows = gradient.size(0);
    const at::Tensor values = gradient.reshape({rows, -1}).to(at::kFloat) / group_->size();
    if (!memory.q.defined()) {
      memory.error = at::zeros_like(values);
      // Any start serves that is the same on all ranks and not orthogonal to the gradients.
      const std::int64_t columns = values.size(1);
      memory.q =
          (at::arange(columns * rank_of(gradient), values.options()) * 12.9898).sin().view({columns, -1});
    }
    memory.error = memory.error.to(values.device());
    memory.q = memory.q.to(values.device());
    return {gradient, values + memory.error, &memory, {}};
  }

  /// Replaces the tensors by their sums over the ranks, in one exchange.
  void sum_together(const std::vector<at::Tensor*>& tensors) const {
    std::vector<at::Tensor> flat;
    for (const at::Tensor* tensor : tensors) flat.push_back(tensor->reshape(-1));
    std::vector<at::Tensor> all{at::cat(flat)};
    group_->process_group()->allreduce(all)->wait();
    std::int64_t at = 0;
    for (at::Tensor* tensor : tensors) {
      *tensor = all[0].narrow(0, at, tensor->numel()).view(tensor->sizes());
      at += tensor->numel();
    }
  }

  void average_together(const std::vector<at::Tensor>& gradients) const {
    std::vector<at::Tensor> sums;
    std::vector<at::Tensor*> pointers;
    for (const at::Tensor& gradient : gradients) sums.push_back(gradient / group_->size());
    for (at::Tensor& sum : sums) pointers.push_back(&sum);
    if (!sums.empty()) sum_together(pointers);
    for (std::size_t i = 0; i < sums.size(); ++i) gradients[i].copy_(sums[i]);
  }

  void approximate(std::vector<Matrix>& matrices) const {
    std::vector<at::Tensor*> left;
    std::vector<at::Tensor*> right;
    for (Matrix& matrix : matrices) {
      matrix.p = at::matmul(matrix.values, matrix.memory->q);
      left.push_back(&matrix.p);
    }
    sum_together(left);
    for (Matrix& matrix : matrices) {
      matrix.p = std::get<0>(at::linalg_qr(matrix.p.nan_to_num()));
      matrix.memory->q = at::matmul(matrix.values.t(), matrix.p);
      right.push_back(&matrix.memory->q);
    }
    sum_together(right);
    for (Matrix& matrix : matrices) {
      const at::Tensor approximation = at::matmul(matrix.p, matrix.memory->q.t());
      // The rank's own part of what was left out. Values that are not finite are not carried on: they are
      // the loss scaler's business, in this step alone.
      matrix.memory->error = (matrix.values - approximation / group_->size()).nan_to_num_(0, 0, 0);
      matrix.gradient.copy_(approximation.view(matrix.gradient.sizes()));
      matrix.memory->q = matrix.memory->q.nan_to_num(0, 0, 0);
    }
  }

  PowerSgdOptions options_;
  ParameterNames names_;
  std::map<std::string, Memory> memories_;
  std::int64_t step_ = 0;
};

}  // namespace

c10::intrusive_ptr<c10::ivalue::Future> Compression::average(const at::Tensor& buffer) const {
  std::vector<at::Tensor> tensors{buffer.is_sparse() ? buffer / group_->size() : buffer.div_(group_->size())};
  return group_->process_group()->allreduce(tensors)->getFuture();
}

std::unique_ptr<Compression> make_compression(std::shared_ptr<comm::Group> group,
                                              const DataParallelOptions& options, ParameterNames names) {
  switch (options.compression) {
    case GradientCompression::kNone:
      return nullptr;
    case GradientCompression::kBf16:
      return std::make_unique<Cast>(std::move(group), at::kBFloat16);
    case GradientCompression::kFp16:
      return std::make_unique<Cast>(std::move(group), at::kHalf);
    case GradientCompression::kPowerSgd:
      return std::make_unique<PowerSgd>(std::move(group), options.power_sgd, std::move(names));
  }
  return nullptr;
}

}  // namespace hasten::parallel

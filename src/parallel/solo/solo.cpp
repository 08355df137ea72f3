#include "parallel/strategies.h"

namespace hasten::parallel {
namespace {

class SoloReplica final : public Replica {
 public:
  void before_forward() override {}
  void copy_from(int) override {}
  void average() override {}
};

/// One process: nothing is shared, so nothing is reduced.
class Solo final : public Strategy {
 public:
  std::string_view name() const override { return "solo"; }
  std::unique_ptr<Replica> attach(const params::ParameterSet&) override {
    return std::make_unique<SoloReplica>();
  }
  void attach(torch::optim::Optimizer&) override {}
  int backward(const at::Tensor& loss, const at::Tensor& weight, bool,
               const BackwardOptions& options) override {
    loss.backward(weight, options.retain_graph, options.create_graph);
    return 1;
  }
};

}  // namespace

std::unique_ptr<Strategy> make_solo() {
  return std::make_unique<Solo>();
}

}  // namespace hasten::parallel

// The time of a reduced backward pass by the size of the reduction's buckets: how the default was chosen.
//
//   hasten launch --cpu --num-processes 2 bench_buckets
//
// Prints, for a network of many small and one of few large parameters, microseconds by bucket size: the
// median of alternating rounds, and its quartiles.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <vector>

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <hasten/hasten.h>

#include "formulas.h"

namespace {

using Clock = std::chrono::steady_clock;

struct Candidate {
  double megabytes;
  std::unique_ptr<hasten::Accelerator> accelerator;
  hasten::PreparedModel<torch::nn::SequentialImpl> model;
  std::vector<double> times;
};

void measure(const char* name, std::int64_t width, int layers) {
  std::vector<Candidate> candidates;
  for (const double megabytes : {0.25, 1.0, 4.0, 25.0, 100.0}) {
    auto accelerator = std::make_unique<hasten::Accelerator>(hasten::AcceleratorOptions{
        .cpu = true, .data_parallel = {.bucket_cap_mb = megabytes}, .progress = false});
    torch::nn::Sequential net;
    for (int i = 0; i < layers; ++i) net->push_back(torch::nn::Linear(width, width));
    auto model = accelerator->prepare(net);
    candidates.push_back({megabytes, std::move(accelerator), model, {}});
  }
  const at::Tensor x = benchmark_formulas::inputs({8, width});
  for (int round = -3; round < 31; ++round)
    for (Candidate& candidate : candidates) {
      for (const auto& parameter : candidate.model->parameters()) parameter.mutable_grad().reset();
      const at::Tensor loss = candidate.model(x).square().mean();
      candidate.accelerator->wait_for_everyone();
      const auto start = Clock::now();
      candidate.accelerator->backward(loss);
      if (round >= 0)
        candidate.times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
    }
  for (Candidate& candidate : candidates) {
    std::sort(candidate.times.begin(), candidate.times.end());
    const auto at = [&](std::size_t quarter) {
      return candidate.times[candidate.times.size() * quarter / 4];
    };
    if (candidate.accelerator->is_main_process())
      std::printf("{\"network\": \"%s\", \"bucket_mb\": %g, \"us\": %.5g, \"quartiles\": [%.5g, %.5g]}\n",
                  name, candidate.megabytes, at(2), at(1), at(3));
  }
}

}  // namespace

int main() try {
  measure("64 layers of 128 x 128 (4 MB)", 128, 64);
  measure("8 layers of 1024 x 1024 (34 MB)", 1024, 8);
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}

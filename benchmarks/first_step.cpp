// From the launch to the first finished step of a tiny model, and the memory of a process by then;
// peers/launch_latency.py is the same in Python.
//
//   hasten launch --num-processes 2 bench_first_step FOLDER
//
// Each rank writes FOLDER/RANK.json: the time of CLOCK_MONOTONIC, the same clock in all processes, and the
// peak memory of itself and of its parent.
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>
#include <unistd.h>

#include <ATen/ops/arange.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <hasten/hasten.h>

namespace {

/// MiB; 0 where the process cannot be looked at.
double peak_memory(const std::string& process) {
  std::ifstream status("/proc/" + process + "/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::stod(line.substr(6)) / 1024;
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2) {
    std::cerr << "bench_first_step FOLDER\n";
    return 2;
  }
  hasten::Accelerator accelerator({.cpu = true, .progress = false});
  torch::nn::Linear net(8, 1);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  hasten::data::Loader batches(
      hasten::data::tensors(at::arange(64 * 8, at::kLong).remainder(7).to(at::kFloat).view({64, 8})),
      {.batch_size = 4});
  auto [model, optimizer, loader] = accelerator.prepare(net, sgd, batches);
  for (auto& x : loader) {
    accelerator.backward(model(x).square().mean());
    optimizer.step();
    optimizer.zero_grad();
    break;
  }
  const std::chrono::duration<double> now = std::chrono::steady_clock::now().time_since_epoch();
  std::ofstream out(std::filesystem::path(argv[1]) / (std::to_string(accelerator.process_index()) + ".json"));
  out.precision(15);
  out << R"({"t": )" << now.count() << R"(, "rss": )" << peak_memory("self") << R"(, "parent_rss": )"
      << peak_memory(std::to_string(::getppid())) << R"(, "world": )" << accelerator.num_processes() << "}\n";
  out.close();
  accelerator.end_training();
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}

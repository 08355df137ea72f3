#include <ATen/Parallel.h>

#include <hasten/launcher/machine.h>
#include <hasten/train/launch.h>

namespace hasten::detail {

void run_in_processes(const LaunchOptions& options, const std::function<void()>& body) {
  (void)launcher::run_processes(options, [&](const config::Process& process) {
    // The environment of a process that runs already does not move LibTorch's number of threads any more.
    at::set_num_threads(launcher::threads_per_process(process.local_world_size));
    body();
    return std::string();
  });
}

}  // namespace hasten::detail

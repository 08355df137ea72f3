#include "data/thread.h"

#include <csignal>
#include <dlfcn.h>
#include <pthread.h>
#include <string>

#include <ATen/Parallel.h>

namespace hasten::data {

void enter_worker_thread(int worker) {
  const std::string name = "hasten-data-" + std::to_string(worker);
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());

  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  // at::set_num_threads would change the whole process. OpenMP's own setting belongs to the calling thread;
  // it is taken from whatever OpenMP LibTorch brought, after LibTorch has made its own first setting.
  at::get_num_threads();
  using SetThreads = void (*)(int);
  if (const auto set_threads = reinterpret_cast<SetThreads>(dlsym(RTLD_DEFAULT, "omp_set_num_threads")))
    set_threads(1);
}

}  // namespace hasten::data

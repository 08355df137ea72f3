#pragma once

namespace hasten::data {

/// Prepares the calling thread to be a worker: gives it a name, keeps LibTorch's operations in it from
/// starting teams of threads of their own, and leaves SIGINT and SIGTERM to the program's other threads.
void enter_worker_thread(int worker);

}  // namespace hasten::data

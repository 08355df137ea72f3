#include <algorithm>
#include <cstdint>
#include <limits>
#include <string_view>
#include <sys/socket.h>
#include <utility>

#include <hasten/base/environment.h>
#include <hasten/base/error.h>
#include <hasten/config/process.h>

#include "config/slurm.h"

namespace hasten::config {
namespace {

constexpr auto kOperation = "environment";
constexpr auto kLoopback = "127.0.0.1";
constexpr auto kStoreVariable = "HASTEN_STORE_FD";

std::optional<int> get_count(const char* name, int lowest) {
  const auto value = environment::get_integer(name, lowest, std::numeric_limits<int>::max());
  return value ? std::optional(static_cast<int>(*value)) : std::nullopt;
}

bool is_loopback(std::string_view address) {
  return address == "localhost" || address == "::1" || address.starts_with("127.");
}

/// `name=value` or `name unset`, for messages.
std::string shown(const char* name) {
  const auto value = environment::get(name);
  return value ? concat(name, "=", *value) : concat(name, " unset");
}

void require_consistent(const Process& process) {
  const bool ranks_fit = process.rank < process.world_size && process.local_rank < process.local_world_size;
  require(
      ranks_fit && process.local_world_size <= process.world_size && process.local_rank <= process.rank,
      ErrorCode::kInvalidArgument, kOperation, process.source, " gives rank ", process.rank, " of ",
      process.world_size, " and local rank ", process.local_rank, " of ", process.local_world_size,
      ", which contradict: ranks count from 0, and a machine holds no more of them than the run. Correct the "
      "variables, or unset them to run one process.");
}

/// The port for a run whose launcher names none; see process_from_environment.
int port_of_job(std::string_view job) {
  std::uint32_t hash = 2166136261U;
  for (const char c : job) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619U;
  return static_cast<int>(10000U + hash % 20000U);
}

/// Fills in the meeting place of a run that mpirun or srun started.
void set_meeting_place(Process& process, const std::optional<std::string>& first_host,
                       const std::string& job) {
  if (process.world_size == 1) return;
  const bool one_machine = process.local_world_size == process.world_size;
  auto address = environment::get("MASTER_ADDR");
  if (!address && one_machine) address = kLoopback;
  if (!address) address = first_host;
  require(address.has_value(), ErrorCode::kInvalidArgument, kOperation, process.source, " started ",
          process.world_size, " processes on several machines (", process.local_world_size,
          " on this one) and names no machine to meet at. Set MASTER_ADDR on all ranks to the host of rank "
          "0, as in "
          "`mpirun -x MASTER_ADDR=host`.");
  process.main_address = *address;
  const auto port = environment::get_integer("MASTER_PORT", 1, 65535);
  require(port || !job.empty(), ErrorCode::kInvalidArgument, kOperation, process.source, " started ",
          process.world_size,
          " processes, but neither MASTER_PORT nor the job's identity is set. Set MASTER_PORT on "
          "all ranks to a free port.");
  process.main_port = port ? static_cast<int>(*port) : port_of_job(job);
}

void set_store_descriptor(Process& process) {
  if (process.rank != 0) return;
  const auto descriptor = get_count(kStoreVariable, 0);
  if (!descriptor) return;
  int listening = 0;
  socklen_t size = sizeof(listening);
  const bool usable =
      getsockopt(*descriptor, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) == 0 && listening == 1;
  require(usable, ErrorCode::kInvalidArgument, kOperation, shown(kStoreVariable),
          ", but that descriptor is no listening socket: something between the launcher and this program "
          "closed it. "
          "Launch the program itself, or let the wrapper keep open descriptors.");
  process.store_descriptor = *descriptor;
}

std::optional<Process> from_contract() {
  const auto rank = get_count("RANK", 0);
  const auto world_size = get_count("WORLD_SIZE", 1);
  if (!rank && !world_size) return std::nullopt;
  require(rank && world_size, ErrorCode::kInvalidArgument, kOperation, shown("RANK"), " and ",
          shown("WORLD_SIZE"), ": both or neither must be set. Set both, or unset both to run one process.");
  const bool torchrun = environment::get("TORCHELASTIC_RUN_ID").has_value();
  Process process{.rank = *rank, .world_size = *world_size};
  process.source = torchrun ? "torchrun" : "RANK and WORLD_SIZE";
  process.agent_store = environment::get_flag("TORCHELASTIC_USE_AGENT_STORE").value_or(false);
  process.attempt = get_count("TORCHELASTIC_RESTART_COUNT", 0).value_or(0);
  process.main_address = environment::get("MASTER_ADDR").value_or("");
  process.main_port = static_cast<int>(environment::get_integer("MASTER_PORT", 1, 65535).value_or(0));
  require(process.world_size == 1 || (!process.main_address.empty() && process.main_port != 0),
          ErrorCode::kInvalidArgument, kOperation, shown("WORLD_SIZE"), " with ", shown("MASTER_ADDR"),
          " and ", shown("MASTER_PORT"),
          ": several processes need both to meet. Set them on all ranks, or start the program with "
          "`hasten launch`, which does.");

  const auto local_rank = get_count("LOCAL_RANK", 0);
  const auto local_size = get_count("LOCAL_WORLD_SIZE", 1);
  const bool one_machine = process.world_size == 1 || is_loopback(process.main_address);
  require(one_machine || local_rank.has_value() == local_size.has_value(), ErrorCode::kInvalidArgument,
          kOperation, shown("LOCAL_RANK"), " and ", shown("LOCAL_WORLD_SIZE"),
          " with ranks on several machines: both or neither "
          "must be set. Set both.");
  process.local_rank = local_rank.value_or(one_machine ? process.rank : 0);
  process.local_world_size = local_size.value_or(one_machine ? process.world_size : 1);
  set_store_descriptor(process);
  return process;
}

std::optional<Process> from_openmpi() {
  const auto rank = get_count("OMPI_COMM_WORLD_RANK", 0);
  const auto world_size = get_count("OMPI_COMM_WORLD_SIZE", 1);
  if (!rank && !world_size) return std::nullopt;
  require(rank && world_size, ErrorCode::kInvalidArgument, kOperation, shown("OMPI_COMM_WORLD_RANK"), " and ",
          shown("OMPI_COMM_WORLD_SIZE"), ": mpirun sets both. Start the program with mpirun, or unset them.");
  Process process{.rank = *rank, .world_size = *world_size, .source = "mpirun"};
  process.local_rank = get_count("OMPI_COMM_WORLD_LOCAL_RANK", 0).value_or(process.rank);
  process.local_world_size = get_count("OMPI_COMM_WORLD_LOCAL_SIZE", 1).value_or(process.world_size);
  auto job = environment::get("PMIX_NAMESPACE");
  if (!job) job = environment::get("OMPI_MCA_ess_base_jobid");
  set_meeting_place(process, std::nullopt, job.value_or(""));
  return process;
}

/// Whether this process belongs to a job step. A batch script, and the shell of an allocation, carry
/// SLURM_PROCID=0 too, but have no step or one of the reserved numbers from 0xfffffff0 on; taken for a rank
/// they would wait forever.
bool in_slurm_step() {
  const auto rank = get_count("SLURM_PROCID", 0);
  if (!rank) return false;
  const auto step = environment::get_integer("SLURM_STEP_ID", 0, std::numeric_limits<std::int64_t>::max());
  return step ? *step < 0xfffffff0 : *rank > 0;
}

int slurm_local_size(int world_size) {
  for (const auto* name : {"SLURM_STEP_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE"}) {
    const auto text = environment::get(name);
    if (!text) continue;
    const auto tasks = tasks_per_node(*text);
    const auto node = static_cast<std::size_t>(get_count("SLURM_NODEID", 0).value_or(0));
    // SLURM_NTASKS_PER_NODE is one number for all nodes, and an upper bound.
    return std::min(node < tasks.size() ? tasks[node] : tasks.front(), world_size);
  }
  return world_size;
}

std::optional<Process> from_slurm() {
  if (!in_slurm_step()) return std::nullopt;
  auto world_size = get_count("SLURM_STEP_NUM_TASKS", 1);
  if (!world_size) world_size = get_count("SLURM_NTASKS", 1);
  require(world_size.has_value(), ErrorCode::kInvalidArgument, kOperation, shown("SLURM_PROCID"),
          ", but SLURM_STEP_NUM_TASKS and SLURM_NTASKS are unset. Start the program with srun, or set "
          "SLURM_NTASKS.");
  Process process{.rank = *get_count("SLURM_PROCID", 0), .world_size = *world_size, .source = "srun"};
  process.local_rank = get_count("SLURM_LOCALID", 0).value_or(process.rank);
  process.local_world_size = slurm_local_size(process.world_size);
  auto hosts = environment::get("SLURM_STEP_NODELIST");
  if (!hosts) hosts = environment::get("SLURM_JOB_NODELIST");
  std::optional<std::string> host;
  if (hosts) host = first_host(*hosts);
  const auto job = environment::get("SLURM_JOB_ID");
  set_meeting_place(process, host, job ? *job + "." + environment::get("SLURM_STEP_ID").value_or("") : "");
  return process;
}

}  // namespace

Process process_from_environment() {
  for (const auto read : {from_contract, from_openmpi, from_slurm}) {
    if (auto process = read()) {
      require_consistent(*process);
      return *process;
    }
  }
  return {.source = "no launcher"};
}

std::vector<Variable> environment_of(const Process& process) {
  const auto value_if = [](bool set, std::string value) {
    return set ? std::optional(std::move(value)) : std::nullopt;
  };
  return {
      {"RANK", std::to_string(process.rank)},
      {"LOCAL_RANK", std::to_string(process.local_rank)},
      {"WORLD_SIZE", std::to_string(process.world_size)},
      {"LOCAL_WORLD_SIZE", std::to_string(process.local_world_size)},
      {"MASTER_ADDR", process.main_address},
      {"MASTER_PORT", std::to_string(process.main_port)},
      {kStoreVariable, value_if(process.store_descriptor >= 0, std::to_string(process.store_descriptor))},
      {"TORCHELASTIC_USE_AGENT_STORE", value_if(process.agent_store, "True")},
      {"TORCHELASTIC_RESTART_COUNT", value_if(process.attempt > 0, std::to_string(process.attempt))},
      {"TORCHELASTIC_RUN_ID", std::nullopt},
  };
}

}  // namespace hasten::config

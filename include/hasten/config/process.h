#pragma once

#include <string>
#include <vector>

#include <hasten/config/variable.h>

namespace hasten::config {

/// Which process of the run this one is, and where the run meets.
struct Process {
  int rank = 0;              ///< among all processes of the run, from 0
  int local_rank = 0;        ///< among those of this machine, from 0
  int world_size = 1;        ///< processes of the run
  int local_world_size = 1;  ///< processes of the run on this machine
  std::string
      main_address{};  ///< where rank 0 serves the store; empty for a run of one process that needs none
  int main_port = 0;   ///< the store's port; 0 where `main_address` is empty
  int store_descriptor =
      -1;                    ///< rank 0 only: the listening loopback socket the launcher opened for the store
  bool agent_store = false;  ///< the launcher itself serves the store (torchrun); every rank only connects
  int attempt = 0;           ///< how often the launcher has restarted the ranks (torchrun)
  std::string source{};      ///< what these values were read from, for messages

  bool operator==(const Process&) const = default;
};

/// Reads which process this is from the environment, in this order:
///
/// 1. RANK and WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, as `hasten launch` and
/// torchrun set
///    them. Without the two LOCAL_ variables, all ranks are taken to be on one machine if MASTER_ADDR is
///    loopback, and each on a machine of its own otherwise. HASTEN_STORE_FD, TORCHELASTIC_USE_AGENT_STORE
///    and TORCHELASTIC_RESTART_COUNT are read too.
/// 2. OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE, as OpenMPI's mpirun sets them.
/// 3. SLURM_PROCID and its kin inside a job step, as srun sets them. A batch script is no step, and runs
/// alone.
/// 4. Otherwise this is a run of one process.
///
/// mpirun and srun name no meeting place. MASTER_ADDR and MASTER_PORT may be set beside them. Otherwise the
/// address is 127.0.0.1 on one machine and under Slurm the step's first host on several; the port is 10000
/// plus the 32-bit FNV-1a hash of the job's identity (PMIX_NAMESPACE or OMPI_MCA_ess_base_jobid; SLURM_JOB_ID
/// and SLURM_STEP_ID) modulo 20000, the same on all ranks and below the ports that Linux hands out by itself.
///
/// Throws `kInvalidArgument`, naming the variables with their values, when they are incomplete or contradict.
[[nodiscard]] Process process_from_environment();

/// The variables of (1) that describe `process`, for the environment of a launched process. What another
/// launcher may have left for an outer run is unset.
[[nodiscard]] std::vector<Variable> environment_of(const Process& process);

}  // namespace hasten::config

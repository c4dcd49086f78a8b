// Which GPU each rank of a job has, for backends that run on GPUs (backend.h), and whether the job's ranks
// can work together with these GPUs.
#pragma once

#include <string>
#include <vector>

#include "runtime/job_environment.h"
#include "shared/plan/target.h"

namespace cp::runtime {

struct RankGpu {
  int cuda_device = 0;
  std::string name;                // "NVIDIA H100 80GB HBM3"
  std::string address;             // on the PCI bus, "0000:65:00"
  const Target* target = nullptr;  // the target for which plans for it are made; lives for ever
  // If the ranks' targets differ, says in words which rank has which. Plans for such a job need a target that
  // the user names. Empty if all are the same.
  std::string targets_differ = {};
  std::vector<Rank> here = {};  // the ranks on this machine, including this one
};

// All ranks of the job must call this together, before they make anything on a GPU. Throws InvalidInput if
// this build, this machine or this process has no GPU, if two ranks have the same GPU and the job does not
// allow that, or if the GPU's generation is not known.
RankGpu rank_gpu(const JobEnvironment& job, RendezvousClient& client);

// ---- its rules

// Returns the rank's GPU by its number among the `gpus` GPUs that the process sees (at least 1). The i-th
// process of a machine gets the i-th GPU. If a process sees only one (CUDA_VISIBLE_DEVICES), that one is its
// own; refuse_shared_gpus() finds out if another rank has it too. Throws InvalidInput if there are several
// GPUs but too few, unless the job allows ranks to share them.
int choose_gpu(const JobEnvironment& job, int gpus);

struct GpuOfRank {
  std::string host, address, name, target;
  std::string boot = {};  // boot_id() of the host, because different machines may have the same name
};
// Returns the ranks on the machine of `rank`, including itself. `ranks` is indexed by rank.
std::vector<Rank> ranks_beside(const std::vector<GpuOfRank>& ranks, Rank rank);
// Throws InvalidInput if two ranks have the same GPU. `ranks` is indexed by rank.
void refuse_shared_gpus(const std::vector<GpuOfRank>& ranks);
// "sm80 (NVIDIA A100) on ranks 0, 1, and sm90 (NVIDIA H100) on ranks 2, 3"; empty when all are the same.
std::string differing_targets(const std::vector<GpuOfRank>& ranks);

}  // namespace cp::runtime

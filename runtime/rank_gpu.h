// Which GPU each rank of a job has, on a backend that runs on GPUs (backend.h), and whether the job's ranks
// can work with what they have.
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
  const Target* target = nullptr;  // what plans for it are made for
  // Who has which, in words, where the ranks' targets differ: plans for such a job need a target that
  // somebody names.
  std::string targets_differ = {};
  std::vector<Rank> here = {};  // the ranks of this machine, this one among them
};

// Called by all ranks of the job, before anything is made on a GPU. Throws InvalidInput where this build,
// this machine or this process has none, where two ranks have one GPU and the job does not allow that, and
// where nothing is known of the GPU's generation.
RankGpu rank_gpu(const JobEnvironment& job, RendezvousClient& client);

// ---- its rules

// The number of the GPU among those that the process sees. With the i-th process of a machine goes the i-th
// GPU; the only one that a process sees is its own (CUDA_VISIBLE_DEVICES), unless another rank says that it
// has it too. `gpus` is positive.
int choose_gpu(const JobEnvironment& job, int gpus);

struct GpuOfRank {
  std::string host, address, name, target;
  std::string boot = {};  // boot_id() of the host: machines may have one name
};
// By rank: those on the machine of `rank`.
std::vector<Rank> ranks_beside(const std::vector<GpuOfRank>& ranks, Rank rank);
// By rank. Throws InvalidInput where two ranks have one GPU.
void refuse_shared_gpus(const std::vector<GpuOfRank>& ranks);
// "sm80 (NVIDIA A100) on ranks 0, 1, and sm90 (NVIDIA H100) on ranks 2, 3"; empty when all are the same.
std::string differing_targets(const std::vector<GpuOfRank>& ranks);

}  // namespace cp::runtime

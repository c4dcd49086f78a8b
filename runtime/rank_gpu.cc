#include "runtime/rank_gpu.h"

#include <map>
#include <utility>

#include "runtime/backend.h"
#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/plan/canonical.h"

namespace cp::runtime {
int choose_gpu(const JobEnvironment& job, int gpus) {
  if (job.local_rank < gpus) return job.local_rank;
  if (gpus == 1) return 0;
  if (job.allow_shared_gpu) return job.local_rank % gpus;
  throw InvalidInput(str("process ", job.local_rank,
                         " of this machine, counted from 0, has no GPU: there are ", gpus,
                         "; use --nproc-per-node ", gpus, ", or --allow-shared-gpu"));
}

std::vector<Rank> ranks_beside(const std::vector<GpuOfRank>& ranks, Rank rank) {
  const GpuOfRank& own = ranks[static_cast<std::size_t>(rank)];
  std::vector<Rank> beside;
  for (std::size_t other = 0; other < ranks.size(); ++other) {
    if (ranks[other].host == own.host && ranks[other].boot == own.boot)
      beside.push_back(static_cast<Rank>(other));
  }
  return beside;
}

void refuse_shared_gpus(const std::vector<GpuOfRank>& ranks) {
  // Hosts as NCCL tells them apart: by both.
  std::map<std::pair<std::string, std::string>, std::map<std::string, std::vector<Rank>>>
      hosts;  // by address
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const GpuOfRank& one = ranks[rank];
    hosts[{one.host, one.boot}][one.address].push_back(static_cast<Rank>(rank));
  }
  for (const auto& [host, gpus] : hosts) {
    for (const auto& [address, sharing] : gpus) {
      if (sharing.size() == 1) continue;
      const GpuOfRank& gpu = ranks[static_cast<std::size_t>(sharing.front())];
      throw InvalidInput(str(ranks_text(sharing), " on host ", host.first, " share the GPU ", gpu.name,
                             " at ", address, ", but NCCL wants one for each rank; use --nproc-per-node ",
                             gpus.size(),
                             ", or --allow-shared-gpu, which is slow, because such ranks send over sockets"));
    }
  }
}

std::string differing_targets(const std::vector<GpuOfRank>& ranks) {
  std::map<std::string, std::vector<Rank>> targets;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    targets[ranks[rank].target].push_back(static_cast<Rank>(rank));
  if (targets.size() <= 1) return "";
  std::vector<std::string> each;
  for (const auto& [target, having] : targets) {
    const std::string& name = ranks[static_cast<std::size_t>(having.front())].name;
    each.push_back(str(target, " (", name, ") on ", ranks_text(having)));
  }
  return cp::join(each, ", and ");
}

RankGpu rank_gpu(const JobEnvironment& job, RendezvousClient& client) {
  const Backend& backend = require_backend(job.backend);
  if (backend.rank_gpu != nullptr) return backend.rank_gpu(job, client);
  throw InvalidInput(str("the ", backend.name, " backend has no GPUs"));
}

}  // namespace cp::runtime

#include "runtime/rank_gpu.h"

#include <chrono>
#include <fstream>
#include <map>
#include <utility>

#include "runtime/joined_device.h"
#include "runtime/rendezvous/client.h"
#include "shared/base/error.h"
#include "shared/base/text.h"
#include "traces/environment.h"

#ifdef CP_HAVE_NCCL
#include "runtime/cuda/visible_gpus.h"
#include "runtime/nccl/nccl_device.h"
#endif

namespace cp::runtime {
int choose_gpu(const JobEnvironment& job, int gpus) {
  if (job.local_rank < gpus) return job.local_rank;
  if (gpus == 1) return 0;
  if (job.allow_shared_gpu) return job.local_rank % gpus;
  throw InvalidInput(str("process ", job.local_rank, " of this machine, from 0, has no GPU: there are ", gpus,
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
      throw InvalidInput(str(ranks_text(sharing), " on host ", host.first, " have one GPU, ", gpu.name,
                             " at ", address, ", and NCCL wants one for each; use --nproc-per-node ",
                             gpus.size(),
                             ", or --allow-shared-gpu, which is slow: what they send goes over sockets"));
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

std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  file >> id;
  return id;
}

#ifdef CP_HAVE_NCCL
namespace {

// Names of hosts, GPUs and targets, and ids of boots, have none.
constexpr char kBetween = '\n';

std::string to_text(const GpuOfRank& gpu) {
  return str(gpu.host, kBetween, gpu.address, kBetween, gpu.name, kBetween, gpu.target, kBetween, gpu.boot);
}

GpuOfRank from_text(const std::string& text) {
  const std::vector<std::string_view> parts = split(text, kBetween);
  CP_INVARIANT(parts.size() == 5, text);
  return {std::string(parts[0]), std::string(parts[1]), std::string(parts[2]), std::string(parts[3]),
          std::string(parts[4])};
}

}  // namespace

RankGpu rank_gpu(const JobEnvironment& job, RendezvousClient& client) {
  constexpr std::chrono::hours kAsLongAsItTakes{24 * 365};  // of driver to start; a lost rank shows otherwise
  const VisibleGpus visible = visible_gpus();
  if (visible.gpus.empty())
    throw InvalidInput(str("--backend nccl needs a GPU: ", visible.why_none, "; --backend gloo needs none"));
  RankGpu own;
  own.cuda_device = choose_gpu(job, static_cast<int>(visible.gpus.size()));
  const VisibleGpu& gpu = visible.gpus[static_cast<std::size_t>(own.cuda_device)];
  own.name = gpu.name, own.address = gpu.address;
  own.target = &gpu_target_of(own.cuda_device);
  std::vector<GpuOfRank> ranks;
  for (const std::string& text :
       client.all_gather("gpu", to_text({host_name(), gpu.address, gpu.name, own.target->name, boot_id()}),
                         kAsLongAsItTakes))
    ranks.push_back(from_text(text));
  if (!job.allow_shared_gpu) refuse_shared_gpus(ranks);
  own.targets_differ = differing_targets(ranks);
  own.here = ranks_beside(ranks, job.rank);
  return own;
}
#else
RankGpu rank_gpu(const JobEnvironment& job, RendezvousClient&) {
  require_backend(job.backend);
  throw InvalidInput(str("the ", name(job.backend), " backend has no GPUs"));
}
#endif

}  // namespace cp::runtime

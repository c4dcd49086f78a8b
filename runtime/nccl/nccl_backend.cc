#include "runtime/nccl/nccl_backend.h"

#include <chrono>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "runtime/cuda/fused_graph.h"
#include "runtime/cuda/visible_gpus.h"
#include "runtime/nccl/nccl_device.h"
#include "runtime/nccl/nccl_environment.h"
#include "runtime/nccl/nccl_windows.h"
#include "runtime/progress_page.h"
#include "runtime/rendezvous/client.h"
#include "runtime/this_host.h"
#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/plan/cudnn_target.h"

namespace cp::runtime {
namespace {

// Separates what ranks say in a text. Names of hosts, GPUs and targets, and ids of boots, have no line end.
constexpr char kBetween = '\n';

// What a rank tells the others.
struct RankFacts {
  GpuOfRank gpu;           // its target is that of the generation
  CudnnVersion cudnn = 0;  // 0: a recent one, or none
};

std::string text_of(const RankFacts& facts) {
  const GpuOfRank& gpu = facts.gpu;
  return str(gpu.host, kBetween, gpu.address, kBetween, gpu.name, kBetween, gpu.target, kBetween, gpu.boot,
             kBetween, facts.cudnn);
}

RankFacts facts_from(const std::string& text) {
  const std::vector<std::string_view> parts = split(text, kBetween);
  CP_INVARIANT(parts.size() == 6, text);
  return {{std::string(parts[0]), std::string(parts[1]), std::string(parts[2]), std::string(parts[3]),
           std::string(parts[4])},
          parse_int(parts[5], "version of cuDNN")};
}

// A year, which stands for ever: drivers may take long to start, a rank may prepare other plans before it
// comes, and a lost one is found by the server.
constexpr std::chrono::hours kUntilTheServerEndsIt{24 * 365};

RankGpu gpu_of_this_rank(const JobEnvironment& job, RendezvousClient& client) {
  const VisibleGpus visible = visible_gpus();
  if (visible.gpus.empty())
    throw InvalidInput(
        str("--backend nccl needs a GPU: ", visible.why_none, "; use --backend gloo, which needs none"));
  RankGpu own;
  own.cuda_device = choose_gpu(job, static_cast<int>(visible.gpus.size()));
  const VisibleGpu& gpu = visible.gpus[static_cast<std::size_t>(own.cuda_device)];
  own.name = gpu.name, own.address = gpu.address;
  const std::string& generation = gpu_generation_of(own.cuda_device).name;
  const CudnnVersion cudnn = fused_library_version().value_or(0);
  std::vector<GpuOfRank> ranks;
  std::vector<CudnnVersion> versions;  // that plans have to fit
  for (const std::string& text :
       client.all_gather("gpu", text_of({{host_name(), gpu.address, gpu.name, generation, boot_id()}, cudnn}),
                         kUntilTheServerEndsIt)) {
    RankFacts facts = facts_from(text);
    if (facts.cudnn > 0) versions.push_back(facts.cudnn);
    ranks.push_back(std::move(facts.gpu));
  }
  own.target = &gpu_target(generation, versions);
  if (!job.allow_shared_gpu) refuse_shared_gpus(ranks);
  own.targets_differ = differing_targets(ranks);
  own.here = ranks_beside(ranks, job.rank);
  return own;
}

std::unique_ptr<ProcessDevice> make_nccl_device(DeviceRequest request) {
  const JobEnvironment& job = request.job;
  const auto* asked = dynamic_cast<const NcclBackendOptions*>(request.own);
  const NcclBackendOptions options = asked == nullptr ? NcclBackendOptions{} : *asked;
  if (request.checksums != Checksums::off) {
    throw InvalidInput(
        "the nccl backend cannot checksum payloads, because its kernels send and reduce them on the GPU; use "
        "gloo, or compare the results");
  }
  const RankGpu gpu = options.gpu ? *options.gpu : gpu_of_this_rank(job, *request.client);
  NcclOptions nccl;
  nccl.rank = job.rank, nccl.world_size = job.world_size;
  nccl.cuda_device = gpu.cuda_device;
  // Plans are the same on all ranks. If the ranks' GPUs differ, plans are therefore made for what all of
  // them have.
  nccl.target =
      &with_copy_engines_of(gpu.targets_differ.empty() ? *gpu.target : common_target(), nccl_versions());
  nccl.on_note = [rank = job.rank](const std::string& note) {
    std::fputs(str("note: rank ", rank, ": ", note, "\n").c_str(), stderr);
  };
  nccl.timeout = job.timeout;
  nccl.communicators = options.communicators;
  nccl.traces = request.traces;
  nccl.graphs = options.graphs;
  nccl.on_refused_graph = options.on_refused_graph;
  nccl.on_collective = std::move(request.on_collective);
  nccl.on_collective_end = std::move(request.on_collective_end);
  nccl.may_wait = std::move(request.may_wait);
  nccl.agree = std::move(request.agree);
  nccl.here = gpu.here, nccl.each_is_a_host = job.allow_shared_gpu;
  if (job.progress) job.progress->set_look_every(kNcclLookPeriod);
  const std::string prefix = "nccl/" + request.name;
  nccl.share = [client = request.client, prefix](const std::string& key,
                                                 const std::optional<std::string>& id) {
    if (!id) return client->get(prefix + key, kUntilTheServerEndsIt);
    client->set(prefix + key, *id);
    return *id;
  };
  if (request.every_rank_prepares) {
    nccl.all_gather = [client = request.client, prefix](const std::string& key, const std::string& own) {
      return client->all_gather(prefix + key, own, kUntilTheServerEndsIt);
    };
  }
  return std::make_unique<NcclDevice>(std::move(nccl));
}

}  // namespace

Backend nccl_backend() {
  Backend backend;
  backend.name = "nccl";
  backend.on_gpus = true;
  backend.make = make_nccl_device;
  backend.versions = gpu_library_versions;
  backend.rank_gpu = gpu_of_this_rank;
  backend.variables = nccl_variables;
  backend.left_behind = left_behind;
  return backend;
}

}  // namespace cp::runtime

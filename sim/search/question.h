// What `cpsim plan` is asked: a model, a workload, a cluster, a piece of software, and what is fixed of the layout.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shared/transformer/memory.h"
#include "shared/transformer/model.h"
#include "shared/transformer/parallel_layout.h"
#include "shared/transformer/workload.h"
#include "sim/cluster/cluster.h"
#include "sim/cluster/software.h"

namespace cp::sim {

// A part of a layout that the search must not vary; unset: free.
struct Fixed {
  std::optional<int> dp_replicate, dp_shard, cp, tp, pp, ep, virtual_stages, loss_chunks;
  std::optional<std::int64_t> micro_batch;
  std::optional<std::string> strategy;  // a name of named_strategy
  std::optional<int> ulysses_degree, inner_ring;
  std::optional<Balance> balance;
  std::optional<Recompute> recompute;
  std::optional<ShardingGroup> sharding;
  std::optional<AxisOrder> order;
};

struct PlanQuestion {
  Transformer model;
  std::string model_source;              // file or preset
  std::vector<std::string> assumptions;  // of the model and of all else, one sentence each
  Workload workload;
  Cluster cluster;  // with its number of nodes
  SoftwareProfile software;
  Fixed fixed;
  std::optional<double> max_memory_gib;  // of a GPU; unset: the cluster's usable memory
  std::optional<double> max_ttft_ms;     // decode: layouts whose prompt takes longer are left out
  std::optional<ParallelLayout> baseline;
  int top = 5;
};

// Bytes that one GPU may use for all of Memory but the context, which the usable memory of a cluster leaves out.
std::int64_t usable_bytes(const PlanQuestion& question);
// What the cluster and the software add to a layout's memory.
MemoryRules memory_rules(const PlanQuestion& question);

}  // namespace cp::sim

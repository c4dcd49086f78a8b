#include "sim/planner/search/part_key.h"

#include <algorithm>
#include <span>
#include <vector>

#include "shared/transformer/rank_groups.h"

namespace cp::sim {
namespace {

// Once a step.
bool is_of_step(StepPart part) { return part == StepPart::reduce || part == StepPart::update; }

// A stage's passes meet data parallelism where gradients are scattered behind each layer, or go to the host
// once they are sums of all ranks. Elsewhere shards and replicas are as good as one another.
bool meets_data_parallelism(const StepRequest& request) {
  return !request.layout.keeps_whole_gradients() || request.workload.optimizer.offload;
}

// All that a plan of the update does not read is as in a default layout.
ParallelLayout seen_by_update(const ParallelLayout& layout) {
  ParallelLayout seen;
  static_cast<ParallelDegrees&>(seen) = layout;
  seen.virtual_stages = layout.virtual_stages;
  seen.sharding = layout.sharding, seen.zero = layout.zero;
  seen.sequence_parallel = layout.sequence_parallel;
  return seen;
}

// Which layers a stage has is said by these.
ParallelLayout seen_by_stage(const StepRequest& request, StepPart part, int stage) {
  ParallelLayout seen = request.layout;
  const bool has_loss = part == StepPart::forward && stage == seen.pp * seen.virtual_stages - 1;
  if (!has_loss) seen.loss_chunks = 1;
  seen.pp = seen.virtual_stages = 1;
  if (meets_data_parallelism(request)) return seen;
  seen.dp_replicate = seen.dp_shard = 1, seen.sharding = {};
  return seen;
}

ParallelLayout seen_by(const StepRequest& request, StepPart part, int stage) {
  ParallelLayout seen = part == StepPart::micro_batch ? request.layout
                        : is_of_step(part)            ? seen_by_update(request.layout)
                                                      : seen_by_stage(request, part, stage);
  seen.order = {};  // ranks say where they are themselves
  return seen;
}

// The sizes and steps of a plan, whatever the ranks are called.
Hasher key_of_plan(const StepRequest& request, StepPart part, int stage, const RankGroups& groups) {
  const ParallelLayout& layout = request.layout;
  const int stages = layout.pp * layout.virtual_stages;
  Hasher key;
  key.add(static_cast<int>(part));
  hash(key, seen_by(request, part, stage));
  // The places in groups. All data parallel ranks have shards of one size.
  key.add(groups.tp()).add(groups.cp()).add(groups.data_index() % layout.ep);
  if (is_of_step(part)) {
    key.add(stage);
  } else if (part != StepPart::micro_batch) {
    key.add(stage == 0).add(stage == stages - 1).add_all(kinds_of_stage(request.model, layout, stage));
    key.add_all(homes_of_stage(request.model, request.workload, layout, stage));
  }
  return key;
}

// Where the ranks of a group lie, as far as a replay can tell: which of them share a node or an NVLink
// domain, and at which place there each is (port_loads.cc). The smaller of both is a part of the larger one.
void add_places(Hasher& key, std::span<const Rank> ranks, const Cluster& cluster) {
  const int unit = std::max(cluster.node.gpus, cluster.node.nvlink_domain);
  std::vector<int> units;  // in the order of their first ranks
  key.add(ranks.size());
  for (const Rank rank : ranks) {
    // The ranks of a unit mostly follow one another.
    const auto found = std::find(units.rbegin(), units.rend(), rank / unit);
    const auto number = found == units.rend() ? std::ssize(units) : units.rend() - found - 1;
    if (found == units.rend()) units.push_back(rank / unit);
    key.add(number).add(rank % unit);
  }
}

}  // namespace

bool may_be_shared(StepPart part) {
  return part == StepPart::forward || part == StepPart::backward || is_of_step(part);
}

Digest memory_key(const StepRequest& request, StepPart part, int stage, Rank self) {
  return key_of_plan(request, part, stage, RankGroups(request.layout, self)).digest();
}

Digest clock_key(const StepRequest& request, StepPart part, int stage, Rank self, const Cluster& cluster) {
  const ParallelLayout& layout = request.layout;
  const RankGroups groups(layout, self);
  Hasher key = key_of_plan(request, part, stage, groups);
  // The ranks of data parallelism are many: the axes' order says where they are.
  if (is_of_step(part) || meets_data_parallelism(request)) {
    key.add(self).add(static_cast<int>(layout.order)).add(layout.pp);
    return key.digest();
  }
  for (const std::vector<Rank>& group :
       {groups.tp_group(), groups.cp_group(), groups.row_group(), groups.ep_group()})
    add_places(key, group, cluster);
  const int stages = layout.pp * layout.virtual_stages;
  for (const int neighbour : {stage - 1, stage + 1}) {
    if (neighbour >= 0 && neighbour < stages)
      add_places(key, std::vector<Rank>{self, groups.on_pipeline_rank(neighbour % layout.pp)}, cluster);
  }
  return key.digest();
}

}  // namespace cp::sim

#include "sim/planner/search/part_key.h"

#include <vector>

#include "shared/transformer/rank_groups.h"

namespace cp::sim {
namespace {

// Once a step.
bool is_of_step(StepPart part) { return part == StepPart::reduce || part == StepPart::update; }

// All that a plan of the update does not read is as in a default layout.
ParallelLayout seen_by_update(const ParallelLayout& layout) {
  ParallelLayout seen;
  static_cast<ParallelDegrees&>(seen) = layout;
  seen.virtual_stages = layout.virtual_stages;
  seen.sharding = layout.sharding, seen.order = layout.order, seen.zero = layout.zero;
  seen.sequence_parallel = layout.sequence_parallel;
  return seen;
}

// A stage's passes meet data parallelism where gradients are scattered behind each layer, or go to the host
// once they are sums of all ranks. Elsewhere shards and replicas are as good as one another. Who its
// neighbours are on the other axes is said by their ranks, and which layers it has by these.
ParallelLayout seen_by_stage(const StepRequest& request, StepPart part, int stage) {
  ParallelLayout seen = request.layout;
  const bool has_loss = part == StepPart::forward && stage == seen.pp * seen.virtual_stages - 1;
  if (!has_loss) seen.loss_chunks = 1;
  seen.pp = seen.virtual_stages = 1;
  if (!request.layout.keeps_whole_gradients() || request.workload.optimizer.offload) return seen;
  seen.dp_replicate = request.layout.dp(), seen.dp_shard = 1;
  seen.sharding = {}, seen.order = {};
  return seen;
}

}  // namespace

bool may_be_shared(StepPart part) {
  return part == StepPart::forward || part == StepPart::backward || is_of_step(part);
}

Digest part_key(const StepRequest& request, StepPart part, int stage, Rank self) {
  const ParallelLayout& layout = request.layout;
  const int stages = layout.pp * layout.virtual_stages;
  Hasher key;
  key.add(static_cast<int>(part)).add(self);
  if (is_of_step(part)) {
    hash(key, seen_by_update(layout));
    return key.add(stage).digest();
  }
  hash(key, seen_by_stage(request, part, stage));
  key.add(stage == 0).add(stage == stages - 1).add_all(kinds_of_stage(request.model, layout, stage));
  key.add_all(homes_of_stage(request.model, request.workload, layout, stage));
  const RankGroups groups(layout, self);
  key.add_all(groups.tp_group()).add_all(groups.cp_group()).add_all(groups.ep_group());
  for (const int neighbour : {stage - 1, stage + 1}) {
    if (neighbour >= 0 && neighbour < stages) key.add(groups.on_pipeline_rank(neighbour % layout.pp));
  }
  return key.digest();
}

}  // namespace cp::sim

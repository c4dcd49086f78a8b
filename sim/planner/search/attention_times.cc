#include "sim/planner/search/attention_times.h"

#include <algorithm>
#include <vector>

#include "shared/transformer/rank_groups.h"
#include "sim/cost/timeline/rank_replay.h"

namespace cp::sim {

AttentionKey attention_key(const ParallelLayout& layout, const Cluster& cluster) {
  int stride = 1;
  const std::vector<MeshAxis> axes = mesh_axes(layout);
  for (auto axis = axes.rbegin(); axis->name != "cp"; ++axis) stride *= axis->size;
  const Strategy& strategy = layout.strategy;
  return {layout.micro_batch,
          layout.tp,
          layout.cp,
          std::min(stride, std::max(cluster.node.gpus, cluster.node.nvlink_domain)),
          strategy.core,
          strategy.ulysses_degree,
          strategy.inner_ring,
          strategy.balance.kind,
          strategy.balance.block,
          strategy.rotation,
          strategy.ulysses_inner,
          strategy.send_empty};
}

AttentionTimes::Pass AttentionTimer::replayed(const ParallelLayout& layout, AttentionPass pass) const {
  const StepRequest request{question_.model, question_.workload, layout};
  const Rank self = busiest_rank(request, 0);
  AttentionRequest attention;
  attention.problem = attention_problem(question_.model, question_.workload, layout);
  attention.ranks = RankGroups(layout, self).cp_group();
  if (layout.cp > 1) attention.strategy = layout.strategy;
  attention.options.lse = LsePlace::computed;
  const StepClock clock = replay_rank(attention_plan(attention, pass, self), question_.cluster, software_);
  return {clock.time_ns - clock.exposed_ns(), clock.exposed_ns()};
}

const AttentionTimes& AttentionTimer::of(const ParallelLayout& layout) {
  const AttentionKey key = attention_key(layout, question_.cluster);
  {
    const std::scoped_lock lock(mutex_);
    if (const auto found = known_.find(key); found != known_.end()) return found->second;
  }
  const AttentionTimes times{replayed(layout, AttentionPass::forward),
                             replayed(layout, AttentionPass::backward)};
  const std::scoped_lock lock(mutex_);
  return known_.try_emplace(key, times).first->second;
}

}  // namespace cp::sim

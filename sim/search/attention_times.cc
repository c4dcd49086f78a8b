#include "sim/search/attention_times.h"

#include "shared/transformer/rank_groups.h"
#include "sim/timeline/rank_replay.h"

namespace cp::sim {

AttentionKey attention_key(const ParallelLayout& layout) {
  const Strategy& strategy = layout.strategy;
  // In the orders that have dp between tp and cp, neighbours among cp ranks are dp * tp ranks apart.
  const int between = layout.order == AxisOrder::tp_dp_cp_pp ? layout.dp() : 1;
  return {layout.micro_batch,
          layout.tp,
          layout.cp,
          layout.order,
          strategy.core,
          strategy.ulysses_degree,
          strategy.inner_ring,
          strategy.balance.kind,
          strategy.balance.block,
          strategy.rotation,
          strategy.ulysses_inner,
          strategy.send_empty,
          between};
}

AttentionTimes::Pass AttentionTimer::replayed(const ParallelLayout& layout, AttentionPass pass) const {
  const StepRequest request{question_.model, question_.workload, layout};
  const Rank self = busiest_rank(request, 0);
  AttentionRequest attention;
  attention.problem = attention_problem(question_.model, question_.workload, layout);
  attention.ranks = RankGroups(layout, self).cp_group();
  if (layout.cp > 1) attention.strategy = layout.strategy;
  const StepClock clock =
      replay_rank(attention_plan(attention, pass, self), question_.cluster, question_.software);
  return {clock.time_ns - clock.exposed_ns(), clock.exposed_ns()};
}

const AttentionTimes& AttentionTimer::of(const ParallelLayout& layout) {
  const auto [found, made] = known_.try_emplace(attention_key(layout));
  if (made)
    found->second = {replayed(layout, AttentionPass::forward), replayed(layout, AttentionPass::backward)};
  return found->second;
}

}  // namespace cp::sim

// Which rank's attention has most allowed pairs.
#include <vector>

#include "shared/context_parallel/cores.h"
#include "shared/context_parallel/pair_counts.h"
#include "shared/context_parallel/sharding.h"
#include "shared/transformer/rank_groups.h"
#include "shared/transformer/step_plan.h"

namespace cp {

Rank busiest_rank(const StepRequest& request, int stage) {
  const ParallelLayout& layout = request.layout;
  // The first rank of the stage, and its cp group.
  const Rank first = RankGroups(layout, 0).on_pipeline_rank(stage % layout.pp);
  if (layout.cp == 1) return first;
  const std::vector<Rank> ranks = RankGroups(layout, first).cp_group();
  const AttentionProblem problem = attention_problem(request.model, request.workload, layout);
  const AttentionSharding sharding(problem, layout.cp, layout.strategy);
  const bool by_key = facts(layout.strategy.core).rotates == Rotates::queries;
  std::int64_t most = -1;
  Rank busiest = first;
  for (int index = 0; index < layout.cp; ++index) {
    const TensorPart part = by_key ? sharding.compute_kv(index) : sharding.compute_q(index);
    const std::int64_t heads = sharding.compute_q(index).num_heads(),
                       all = heads * (by_key ? pairs_of_keys(problem, part.rows)
                                             : pairs_of_queries(problem, part.rows));
    if (all > most) most = all, busiest = ranks[static_cast<std::size_t>(index)];
  }
  return busiest;
}

}  // namespace cp

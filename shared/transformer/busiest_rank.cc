// Which rank the others wait for.
#include <algorithm>
#include <vector>

#include "shared/base/index.h"
#include "shared/context_parallel/cores.h"
#include "shared/context_parallel/pair_counts.h"
#include "shared/context_parallel/sharding.h"
#include "shared/transformer/rank_groups.h"
#include "shared/transformer/step_plan.h"

namespace cp {
namespace {

// Where a token is written, the index of the cp rank that has its row.
int index_of_token(const StepRequest& request) {
  const AttentionProblem problem =
      attention_problem(request.model, request.workload, request.layout, first_attention(request.model));
  const AttentionSharding sharding(problem, request.layout.cp, request.layout.strategy);
  int index = 0;
  while (sharding.home_q(index).num_rows() == 0) ++index;
  return index;
}

}  // namespace

Rank busiest_rank(const StepRequest& request, int stage) {
  const ParallelLayout& layout = request.layout;
  // The first rank of the stage, and its cp group.
  const Rank first = RankGroups(layout, 0).on_pipeline_rank(stage % layout.pp);
  if (layout.cp == 1) return first;
  const std::vector<Rank> ranks = RankGroups(layout, first).cp_group();
  if (request.workload.phase == Phase::decode) return ranks[idx(index_of_token(request))];
  const auto [first_layer, count] = layers_of_stage(request.model, layout, stage);
  std::vector<std::int64_t> layers = layers_of_kinds(request.model, first_layer, count);
  if (stage == layout.pp * layout.virtual_stages - 1)
    layers[idx(request.model.last_kind())] += request.model.prediction_layers;
  std::vector<std::int64_t> pairs(ranks.size());  // of the layers of the stage
  for (std::size_t kind = 0; kind < layers.size(); ++kind) {
    if (layers[kind] == 0 || request.model.kinds[kind].mixer != Mixer::attention) continue;
    const AttentionProblem problem =
        attention_problem(request.model, request.workload, layout, request.model.kinds[kind]);
    const Strategy strategy = strategy_of(layout, problem);
    const AttentionSharding sharding(problem, layout.cp, strategy);
    const bool by_key = facts(strategy.core).rotates == Rotates::queries;
    for (int index = 0; index < layout.cp; ++index) {
      const TensorPart part = by_key ? sharding.compute_kv(index) : sharding.compute_q(index);
      pairs[idx(index)] +=
          layers[kind] * sharding.compute_q(index).num_heads() *
          (by_key ? pairs_of_keys(problem, part.rows) : pairs_of_queries(problem, part.rows));
    }
  }
  const auto most = std::max_element(pairs.begin(), pairs.end());
  if (*most > 0) return ranks[idx(most - pairs.begin())];
  // No layer attends. Of recurrences, a rank in the middle has most: states come in to it and go on. Else it
  // is the first one with most rows.
  if (request.model.recurrence) return ranks[ranks.size() / 2];
  const AttentionSharding sharding(
      attention_problem(request.model, request.workload, layout, first_attention(request.model)), layout.cp,
      strategy_at_home(layout, 0));
  int fullest = 0;
  for (int index = 1; index < layout.cp; ++index) {
    if (sharding.home_q(index).num_rows() > sharding.home_q(fullest).num_rows()) fullest = index;
  }
  return ranks[idx(fullest)];
}

}  // namespace cp

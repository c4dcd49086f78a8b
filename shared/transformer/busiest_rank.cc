// Which rank's attention has most allowed pairs, in closed form: ranks' rows come in few runs, of which many may be short.
#include <algorithm>
#include <array>
#include <vector>

#include "shared/context_parallel/sharding.h"
#include "shared/transformer/rank_groups.h"
#include "shared/transformer/step_plan.h"

namespace cp {
namespace {

// Allowed pairs by query, or by key, under a causal mask: a function of the position that is linear between few bends.
struct Pairs {
  const AttentionProblem& problem;
  bool by_key;

  std::int64_t at(std::int64_t row) const {
    const std::int64_t window = problem.window.value_or(problem.kv_len + problem.q_len),
                       offset = problem.offset();
    if (!by_key) return std::max<std::int64_t>(0, std::min(row + offset + 1, window));
    const std::int64_t end = std::min(row + window, offset + problem.q_len);
    return std::max<std::int64_t>(0, end - std::max(row, offset));
  }
  std::array<std::int64_t, 4> bends() const {
    const std::int64_t window = problem.window.value_or(problem.kv_len + problem.q_len),
                       offset = problem.offset();
    if (!by_key) return {window - offset - 1, -offset - 1, 0, 0};
    return {offset, offset - window, offset + problem.q_len - window, 0};
  }

  // Over rows first, first + stride, ..., `count` of them.
  std::int64_t sum(std::int64_t first, std::int64_t stride, std::int64_t count) const {
    std::vector<std::int64_t> cuts = {0, count};
    for (const std::int64_t bend : bends()) {
      cuts.push_back(
          std::clamp<std::int64_t>(ceil_div(std::max<std::int64_t>(bend - first, 0), stride), 0, count));
      cuts.push_back(std::min(count, cuts.back() + 1));
    }
    std::sort(cuts.begin(), cuts.end());
    std::int64_t total = 0;
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      const std::int64_t n = cuts[i + 1] - cuts[i];
      if (n == 0) continue;
      total += n * (at(first + cuts[i] * stride) + at(first + (cuts[i + 1] - 1) * stride)) / 2;
    }
    return total;
  }
  std::int64_t sum(const IndexSet& rows) const {
    std::int64_t total = 0;
    for (const Run& run : rows) {
      if (run.run <= run.count) {
        for (std::int64_t i = 0; i < run.run; ++i) total += sum(run.begin + i, run.stride, run.count);
      } else {
        for (std::int64_t i = 0; i < run.count; ++i) total += sum(run.begin + i * run.stride, 1, run.run);
      }
    }
    return total;
  }
};

}  // namespace

Rank busiest_rank(const StepRequest& request, int stage) {
  const ParallelLayout& layout = request.layout;
  // The first rank of the stage, and its cp group.
  const Rank first = RankGroups(layout, 0).on_pipeline_rank(stage % layout.pp);
  if (layout.cp == 1) return first;
  const std::vector<Rank> ranks = RankGroups(layout, first).cp_group();
  const AttentionProblem problem = attention_problem(request.model, request.workload, layout);
  const AttentionSharding sharding(problem, layout.cp, layout.strategy);
  const bool by_key = layout.strategy.core == Core::pass_q;
  const Pairs pairs{problem, by_key};
  std::int64_t most = -1;
  Rank busiest = first;
  for (int index = 0; index < layout.cp; ++index) {
    const TensorPart part = by_key ? sharding.compute_kv(index) : sharding.compute_q(index);
    const std::int64_t heads = sharding.compute_q(index).num_heads(), all = heads * pairs.sum(part.rows);
    if (all > most) most = all, busiest = ranks[static_cast<std::size_t>(index)];
  }
  return busiest;
}

}  // namespace cp

#include "shared/recurrence/heads_trade.h"

#include <algorithm>

#include "shared/base/error.h"
#include "shared/redistribute/lower.h"

namespace cp::detail {

HeadsTrade::HeadsTrade(const RecurrenceRequest& request) {
  const RecurrenceProblem& p = request.problem;
  for (const Kind& kind : {Kind{p.key_heads, p.key_dim, p.dtype}, Kind{p.value_heads, p.value_dim, p.dtype},
                           Kind{p.value_heads, 0, DType::f32}}) {
    const bool known =
        std::any_of(moves_.begin(), moves_.end(), [&](const Moves& moves) { return moves.kind == kind; });
    if (known) continue;
    const Layout rows = row_layout(request, kind.heads, std::max<std::int64_t>(1, kind.dim), kind.dtype);
    const std::vector<Placement> by_heads(rows.placements.size(), Shard{2, Balanced{}});
    const Layout heads = make_layout(rows.mesh, by_heads, rows.shape, rows.dtype);
    moves_.push_back({kind, plan_redistribution(rows, heads), plan_redistribution(heads, rows)});
  }
}

const HeadsTrade::Moves& HeadsTrade::moves_of(const Kind& kind) const {
  const auto found =
      std::find_if(moves_.begin(), moves_.end(), [&](const Moves& moves) { return moves.kind == kind; });
  CP_INVARIANT(found != moves_.end(), "no move of ", kind.heads, " heads of ", kind.dim);
  return *found;
}

void HeadsTrade::to_heads(PlanBuilder& builder, Rank self, const Kind& kind, BufferId home,
                          BufferId there) const {
  append_redistribution(builder, builder.stream("comm"), self, moves_of(kind).there, home, there);
}

void HeadsTrade::to_rows(PlanBuilder& builder, Rank self, const Kind& kind, BufferId there,
                         BufferId home) const {
  append_redistribution(builder, builder.stream("comm"), self, moves_of(kind).back, there, home);
}

}  // namespace cp::detail

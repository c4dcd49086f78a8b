// What attention takes at least: its kernels, what it waits for, and the products and positions before it.
#include <algorithm>

#include "shared/context_parallel/cores.h"
#include "shared/context_parallel/pair_counts.h"
#include "sim/planner/search/bound.h"
#include "sim/planner/search/bound_terms.h"

namespace cp::sim {

using namespace bound_terms;

namespace {

// The share of what comes at once that its first piece has. Where heads do not divide evenly, nothing is
// claimed: the query heads that a piece has of it may be few.
double least_piece(const Strategy& strategy, std::int64_t kv_heads) {
  if (strategy.pieces == 1) return 1;
  if (kv_heads % strategy.ulysses_degree != 0) return 0;
  const std::int64_t of_rank = kv_heads / strategy.ulysses_degree;
  return real(of_rank / strategy.pieces) / real(of_rank);
}

}  // namespace

double StepBound::pairs_of_last(std::int64_t rows, const LayerKind& kind) const {
  const AttentionProblem problem = attention_problem(question_.model, question_.workload, {}, kind);
  return real(pairs_of_queries(problem, index_range(problem.q_len - rows, problem.q_len)));
}

StepBound::Attention StepBound::attention(const ParallelLayout& layout, const LocalSizes& sizes,
                                          std::size_t kind_index, bool whole_family) const {
  const Transformer& model = question_.model;
  const LayerKind& kind = model.kinds[kind_index];
  if (kind.mixer == Mixer::recurrence) return {recurrence(layout, sizes), {}};
  if (kind.mixer == Mixer::none) return {};
  const double pairs_of_head = pairs_[kind_index];
  const std::int64_t heads = model.q_heads / layout.tp;
  const double of_all = kSlack * pairs_of_head * real(layout.micro_batch);  // and a head
  // Kernels of few rows split their keys instead, and are as fast as large ones. The timeline says so up to
  // 64 rows (kFewRows of attention_cost.cc); the bound allows it up to 512, to be on the safe side.
  const std::int64_t rows =
      sizes.rows * (layout.cp > 1 ? layout.strategy.ulysses_degree : 1) * model.q_heads / model.kv_heads;
  const bool absorbed = latent_use(model, question_.workload, layout) == LatentUse::absorbed;
  const bool few = rows <= 512 || question_.workload.phase != Phase::training;
  const auto kernels = [&](AttentionSum sum) {
    sum.few_rows = few, sum.values_in_keys = absorbed;
    // A product with head_dim, and one with v_head_dim; backward three and two.
    const std::int64_t head_dim = absorbed ? model.latent->kv_row() : model.head_dim;
    const double d = real(head_dim), v = real(absorbed ? model.latent->kv_rank : model.v_head_dim());
    sum.flops_per_pair = 2 * (d + v);
    const double forward = kernels_.attention().least_ns(sum, head_dim, false);
    sum.flops_per_pair = 6 * d + 4 * v;
    return Pass{forward, kernels_.attention().least_ns(sum, head_dim, true)};
  };
  // Of a head: each row of queries is computed once at least.
  const double rows_of_all = kSlack * real(question_.workload.seq_len) * real(layout.micro_batch);
  Attention result;
  if (whole_family || layout.cp == 1) {
    const double share = real(heads) / layout.cp, pairs = of_all * share;
    result.kernels =
        kernels({.pairs = pairs, .rows = rows_of_all * share, .pairs_at_once = 2 * pairs / kSlack});
    return result;
  }
  const AttentionProblem problem = attention_problem(model, question_.workload, layout, kind);
  const bool is_cut = problem.window || problem.chunk || problem.has_documents();
  const Strategy strategy = strategy_of(layout, problem);
  const int ulysses = strategy.ulysses_degree, ring = layout.cp / ulysses;
  const bool whole_triangle = question_.workload.phase == Phase::training && !is_cut;
  // Contiguous, the last of the ranks sees most.
  const double share = whole_triangle && strategy.balance.kind == Balance::Kind::contiguous
                           ? pairs_of_last(question_.workload.seq_len / ring, kind) / pairs_of_head
                           : 1.0 / ring;
  const double of_heads = of_all * real(ceil_div(heads, ulysses));
  // Nothing is claimed of blocks of layers with windows: the search may yet give them a core of their own,
  // which has all keys at once; nor of documents, of which a block may have any share.
  const bool in_turn = !is_cut && facts(strategy.core).rotates != Rotates::nothing;
  // A block of queries meets one of keys, or all.
  AttentionSum sum{.pairs = of_heads * share};
  sum.rows = rows_of_all * real(ceil_div(heads, ulysses)) / ring;
  if (in_turn) sum.most_keys = real(question_.workload.seq_len) / ring + 2;  // rounding of halves
  // The most pairs that one call may have, since larger calls are faster. In turn, a call has one block of
  // queries and one of keys: (seq_len / ring)^2 pairs where it is full. The causal triangle has seq_len^2 / 2
  // pairs, of which that is 2 / ring^2; the tenth above 2 is for blocks that are longer than the mean.
  sum.pairs_at_once = of_heads / kSlack * (in_turn ? std::min(share, 2.1 / ring / ring) : share);
  result.kernels = kernels(sum);
  if (!whole_triangle) return result;

  // `tokens` is of the rank that has most rows, but what arrives there are the rows of the others, which may
  // have fewer. The 0.9 allows for that. It is a margin, not a derived figure: IsBelowTheTimeline holds it to
  // lengths such as 5001, which no number of ranks there divides.
  const double width = real(size_bytes(question_.workload.dtype)), tokens = real(sizes.tokens);
  // Queries travel one way, and outputs the other.
  const bool rows_travel = problem.has_latent();
  const double q = kSlack * 0.9 * tokens * real(std::min(sizes.q_width, sizes.out_width)) * width,
               row = real(rows_travel ? problem.latent.dim() : sizes.kv_width + sizes.v_width),
               kv = kSlack * 0.9 * tokens * row * width,
               // Each member of a Ulysses group gets all rows of the others; of heads its own part.
      kv_of_ulysses = rows_travel ? kv : kv / ulysses, kv_of_ring = rows_travel ? kv * ulysses : kv;
  const std::int64_t stride = strides_of(layout).cp;
  const Ranks of_ulysses{strategy.ulysses_inner ? stride : stride * ring, ulysses},
      of_ring{strategy.ulysses_inner ? stride * ulysses : stride, ring};
  // q, k and v to heads, out to rows; dout to heads, dq, dk and dv to rows. In pieces, nothing hides what the
  // first one brings and the last one returns.
  const double of_piece = least_piece(strategy, std::max<std::int64_t>(1, model.kv_heads / layout.tp));
  const auto exposed_ns = [&](double bytes, const Ranks& ranks) {
    return from_each_ns(of_piece * bytes, ranks);
  };
  result.moved.forward_ns = result.moved.backward_ns =
      2 * exposed_ns(q / ulysses, of_ulysses) + exposed_ns(kv_of_ulysses, of_ulysses);
  if (ring == 1) return result;
  const LeastTraffic traffic = facts(strategy.core).least_traffic(strategy, ring, q, kv_of_ring);
  if (traffic.gathered_bytes > 0) {
    const double gathered = exposed_ns(traffic.gathered_bytes, of_ring);
    result.moved.forward_ns += gathered, result.moved.backward_ns += gathered;
  }
  if (traffic.hops > 0) {
    // Blocks travel while others are computed, so the hops are no sum with the kernels but another lower
    // limit.
    const double hops = real(traffic.hops) * hop_ns(traffic.hop_bytes, of_ring);
    result.kernels.forward_ns = std::max(result.kernels.forward_ns, hops);
    result.kernels.backward_ns = std::max(result.kernels.backward_ns, hops);
  }
  return result;
}

}  // namespace cp::sim

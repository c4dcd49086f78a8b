// What attention takes at least: its kernels, what it waits for, and the products and positions before it.
#include <algorithm>

#include "shared/context_parallel/cores.h"
#include "shared/context_parallel/pair_counts.h"
#include "shared/context_parallel/sharding.h"
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

// From the index sets of the ranks; found once for all layouts that deal rows alike.
StepBound::BlockRows StepBound::block_rows(const ParallelLayout& layout, std::size_t kind) const {
  const AttentionProblem problem =
      attention_problem(question_.model, question_.workload, layout, question_.model.kinds[kind]);
  const Strategy strategy = strategy_of(layout, problem);
  const Balance& balance = strategy.balance;
  const BlockRowsKey key{kind,         layout.cp,     strategy.ulysses_degree,
                         balance.kind, balance.block, balance.per_document};
  return block_rows_.of(key, [&] {
    const AttentionSharding sharding(problem, layout.cp, strategy);
    BlockRows rows{problem.q_len, problem.q_len, 0};
    for (int index = 0; index < layout.cp; ++index) {
      const std::int64_t computed = sharding.compute_q(index).num_rows();
      rows.least_at_home = std::min(rows.least_at_home, sharding.home_q(index).num_rows());
      rows.least = std::min(rows.least, computed);
      rows.most = std::max({rows.most, computed, sharding.compute_kv(index).num_rows()});
    }
    return rows;
  });
}

StepBound::Attention StepBound::attention(const ParallelLayout& layout, const LocalSizes& sizes,
                                          std::size_t kind_index, bool whole_family) const {
  const Transformer& model = question_.model;
  const LayerKind& kind = model.kinds[kind_index];
  if (kind.mixer == Mixer::recurrence) return {recurrence(layout, sizes), {}};
  if (kind.mixer != Mixer::attention) return {};
  const double pairs_of_head = pairs_[kind_index];
  const std::int64_t heads = model.q_heads / layout.tp;
  const double of_all = kSlack * pairs_of_head * real(layout.micro_batch);  // and a head
  // Kernels of few rows split their keys instead, and are as fast as large ones. A kernel has all queries of
  // a block. Where these may yet be dealt otherwise, a rank has half of the mean at least: a balance deals
  // blocks in turn, one to each rank at least, and of x >= 1 turns floor(x) >= x / 2 are whole. Of balances
  // that go by the mask or by documents nothing is claimed then.
  const bool training = question_.workload.phase == Phase::training;
  const bool is_settled =
      !whole_family && !kind.window && !kind.chunk && question_.workload.cu_seqlens.empty();
  const Balance& balance = layout.strategy.balance;
  const bool by_number = balance.kind != Balance::Kind::cost && !balance.per_document;
  const std::int64_t least_rows = !training        ? 0
                                  : layout.cp == 1 ? question_.workload.seq_len
                                  : is_settled     ? block_rows(layout, kind_index).least
                                  : by_number      ? question_.workload.seq_len / layout.cp / 2
                                                   : 0;
  const bool absorbed = latent_use(model, question_.workload, layout) == LatentUse::absorbed;
  const bool few = real(least_rows * (model.q_heads / model.kv_heads)) <= AttentionCost::kFewRows;
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
  const bool is_cut = problem.is_cut();
  const Strategy strategy = strategy_of(layout, problem);
  const int ulysses = strategy.ulysses_degree, ring = layout.cp / ulysses;
  const bool whole_triangle = question_.workload.phase == Phase::training && !is_cut;
  // Contiguous, the last of the ranks sees most; but where chunks begin anew, another may see most in layers
  // with these, and one rank stands for all layers.
  const bool any_chunks = std::any_of(model.kinds.begin(), model.kinds.end(), [&](const LayerKind& of) {
    return of.chunk && *of.chunk < question_.workload.seq_len;
  });
  const double share = whole_triangle && !any_chunks && strategy.balance.kind == Balance::Kind::contiguous
                           ? pairs_of_last(question_.workload.seq_len / ring, kind) / pairs_of_head
                           : 1.0 / ring;
  const double of_heads = of_all * real(ceil_div(heads, ulysses));
  // Nothing is claimed of blocks of layers with windows: the search may yet give them a core of their own,
  // which has all keys at once; nor of documents, of which a block may have any share.
  const bool in_turn = !is_cut && facts(strategy.core).rotates != Rotates::nothing;
  // A block of queries meets one of keys, or all.
  AttentionSum sum{.pairs = of_heads * share};
  sum.rows = rows_of_all * real(ceil_div(heads, ulysses)) / ring;
  // The most pairs that one call may have, since larger calls are faster. In turn, a call has one block of
  // queries and one of keys: all pairs of the longest block with another one, where it is full.
  double of_call = share;
  if (in_turn) {
    const double most = real(block_rows(layout, kind_index).most);
    sum.most_keys = most, of_call = std::min(share, most * most / pairs_of_head);
  }
  sum.pairs_at_once = of_heads / kSlack * of_call;
  result.kernels = kernels(sum);
  if (!whole_triangle) return result;

  // What arrives are the rows of other ranks.
  const double width = real(size_bytes(question_.workload.dtype)),
               tokens = real(block_rows(layout, kind_index).least_at_home * layout.micro_batch);
  // Queries travel one way, and outputs the other.
  const bool rows_travel = problem.has_latent();
  const double q = kSlack * tokens * real(std::min(sizes.q_width, sizes.out_width)) * width,
               row = real(rows_travel ? problem.latent.dim() : sizes.kv_width + sizes.v_width),
               kv = kSlack * tokens * row * width,
               // Each member of a Ulysses group gets all rows of the others; of heads its own part.
      kv_of_ulysses = rows_travel ? kv : kv / ulysses, kv_of_ring = rows_travel ? kv * ulysses : kv;
  const std::int64_t stride = strides_of(layout).cp;
  const Ranks of_ulysses{strategy.ulysses_inner ? stride : stride * ring, ulysses},
      of_ring{strategy.ulysses_inner ? stride * ulysses : stride, ring};
  // q, k and v to heads, out to rows; dout to heads, dq, dk and dv to rows. In pieces, nothing hides what the
  // first one brings and the last one returns.
  const double of_piece = least_piece(strategy, std::max<std::int64_t>(1, model.kv_heads / layout.tp));
  const auto exposed_ns = [&](double bytes, const Ranks& ranks) {
    return from_each_ns(of_piece * bytes, ranks, Brings::each_its_own);
  };
  result.moved.forward_ns = result.moved.backward_ns =
      2 * exposed_ns(q / ulysses, of_ulysses) + exposed_ns(kv_of_ulysses, of_ulysses);
  if (ring == 1) return result;
  const LeastTraffic traffic = facts(strategy.core).least_traffic(strategy, ring, q, kv_of_ring);
  if (traffic.gathered_bytes > 0) {
    const double gathered = from_each_ns(of_piece * traffic.gathered_bytes, of_ring, Brings::all_the_same);
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

// What the layers of a step take at least: their products, rows, attention and recurrences, and what these
// wait for.
#include <algorithm>
#include <cmath>
#include <vector>

#include "shared/base/index.h"
#include "shared/context_parallel/cores.h"
#include "shared/context_parallel/pair_counts.h"
#include "sim/planner/search/bound.h"
#include "sim/planner/search/bound_terms.h"

namespace cp::sim {

using namespace bound_terms;

namespace {

// Kernels that experts on several ranks have in addition to those on one (expert_writer.cc). Where a rank has
// several experts, rows and weights that arrived are sorted, and outputs are unsorted; backward the gradients
// of all three.
constexpr double kSorts = 3;

// claimed: the query heads that a piece has of it may be few.
double least_piece(const Strategy& strategy, std::int64_t kv_heads) {
  if (strategy.pieces == 1) return 1;
  if (kv_heads % strategy.ulysses_degree != 0) return 0;
  const std::int64_t of_rank = kv_heads / strategy.ulysses_degree;
  return real(of_rank / strategy.pieces) / real(of_rank);
}

// Of the layers of a kind, at least: on the stage where fewest are.
double recomputed_share(const ParallelLayout& layout, const Transformer& model, int kind) {
  if (layout.recompute.kind == Recompute::Kind::full) return 1;
  if (!model.order.empty()) {
    double least = 1;
    std::int64_t first = 0;
    for (const std::int64_t count : stage_layers(model, layout)) {
      std::int64_t of_kind = 0, again = 0;
      for (std::int64_t layer = 0; layer < count; ++layer) {
        if (model.order[idx(first + layer)] != kind) continue;
        ++of_kind;
        if (layer % layout.recompute.every == layout.recompute.every - 1) ++again;
      }
      if (of_kind > 0) least = std::min(least, real(again) / real(of_kind));
      first += count;
    }
    return least;
  }
  const std::int64_t fewest = model.layers / (std::int64_t{layout.pp} * layout.virtual_stages);
  const auto share = [&](std::int64_t number) {
    return real(number / layout.recompute.every) / real(number);
  };
  return std::min(share(fewest), share(fewest + 1));
}

}  // namespace

double StepBound::product(std::int64_t m, std::int64_t k, std::int64_t n) const {
  if (m == 0 || k == 0 || n == 0) return 0;
  return kernels_.product_ns(product_work(real(m), real(n), real(k)), question_.workload.dtype);
}

// Of all experts of a rank, whose rows are dealt to them as a plan does: all have as many, but the last ones.
StepBound::Products StepBound::experts(std::int64_t rows, std::int64_t number, std::int64_t k,
                                       std::int64_t n) const {
  const std::int64_t with_rows = rows == 0 ? 0 : ceil_div(rows, ceil_div(rows, number));
  const DType dtype = question_.workload.dtype;
  if (with_rows < 2 || !kernels_.groups(dtype)) {
    Products all = products(rows / number, k, n);
    for (double* ns : {&all.forward_ns, &all.input_ns, &all.weight_ns}) *ns *= real(number);
    return all;
  }
  const auto ns = [&](std::int64_t columns, std::int64_t inner) {
    return kernels_.grouped_ns({real(with_rows), real(rows), real(columns), real(inner), dtype});
  };
  return {ns(n, k), ns(k, n), ns(k, n)};
}

StepBound::Products StepBound::products(std::int64_t m, std::int64_t k, std::int64_t n) const {
  return {product(m, k, n), product(m, n, k), product(k, m, n)};
}

double StepBound::region(CollectiveKind kind, double bytes, std::int64_t stride, std::int64_t size) const {
  if (size == 1) return 0;
  std::vector<Rank> ranks;
  for (std::int64_t i = 0; i < size; ++i) ranks.push_back(static_cast<Rank>(i * stride));
  const Cluster& cluster = question_.cluster;
  return region_ns(kind, bytes, cp::sim::spread_of(ranks, cluster), cluster,
                   settings_of({}, question_.software));
}

std::int64_t StepBound::on_a_node(const Ranks& ranks) const {
  const Node& node = question_.cluster.node;
  const std::int64_t near = std::max(node.gpus, node.nvlink_domain);
  return std::clamp<std::int64_t>(near / ranks.stride, 1, ranks.size);
}

double StepBound::from_each_ns(double bytes, const Ranks& ranks) const {
  const Cluster& cluster = question_.cluster;
  const std::int64_t near = on_a_node(ranks);
  if (ranks.size == 1) return 0;
  const double inside = real(near - 1) * bytes / std::max(cluster.node.nvlink_gbps, cluster.node.pcie_gbps);
  return std::max({inside, real(ranks.size - near) * bytes / cluster.network.nic_gbps, hop_ns(bytes, ranks)});
}

double StepBound::hop_ns(double bytes, const Ranks& ranks) const {
  if (bytes == 0) return 0;
  const Cluster& cluster = question_.cluster;
  const bool leaves = on_a_node(ranks) < ranks.size;
  const Curve& measured = leaves ? cluster.transfer.inter_node : cluster.transfer.intra_node;
  const double link =
      leaves ? cluster.network.nic_gbps : std::max(cluster.node.nvlink_gbps, cluster.node.pcie_gbps);
  return bytes / (measured.empty() ? link : std::min(link, measured.at(bytes)));
}

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
  const bool few = rows <= 512 || question_.workload.phase != Phase::training;
  const auto kernels = [&](AttentionSum sum) {
    sum.few_rows = few;
    // A product with head_dim, and one with v_head_dim; backward three and two.
    const double d = real(model.head_dim), v = real(model.v_head_dim());
    sum.flops_per_pair = 2 * (d + v);
    const double forward = kernels_.attention().least_ns(sum, model.head_dim, false);
    sum.flops_per_pair = 6 * d + 4 * v;
    return Pass{forward, kernels_.attention().least_ns(sum, model.head_dim, true)};
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
  const bool is_cut = problem.window || problem.chunk;
  const Strategy strategy = strategy_of(layout, problem);
  const int ulysses = strategy.ulysses_degree, ring = layout.cp / ulysses;
  const bool whole_triangle = question_.workload.phase == Phase::training && !is_cut;
  // Contiguous, the last of the ranks sees most.
  const double share = whole_triangle && strategy.balance.kind == Balance::Kind::contiguous
                           ? pairs_of_last(question_.workload.seq_len / ring, kind) / pairs_of_head
                           : 1.0 / ring;
  const double of_heads = of_all * real(ceil_div(heads, ulysses));
  // Nothing is claimed of blocks of layers with windows: the search may yet give them a core of their own,
  // which has all keys at once.
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
  const double q = kSlack * 0.9 * tokens * real(std::min(sizes.q_width, sizes.out_width)) * width,
               kv = kSlack * 0.9 * tokens * real(sizes.kv_width + sizes.v_width) * width;
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
      2 * exposed_ns(q / ulysses, of_ulysses) + exposed_ns(kv / ulysses, of_ulysses);
  if (ring == 1) return result;
  const LeastTraffic traffic = facts(strategy.core).least_traffic(strategy, ring, q, kv);
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

double StepBound::positions_ns(const LocalSizes& sizes) const {
  const std::int64_t written = sizes.q_width + sizes.kv_width,
                     read = sizes.q_width + (question_.model.latent ? sizes.up_width : sizes.kv_width),
                     values = question_.model.latent ? sizes.v_width : 0;  // which come with the keys
  const double bytes =
      real(size_bytes(question_.workload.dtype)) * real(sizes.tokens * (read + written + values));
  return kernels_.memory_ns(bytes * question_.software.rotary_passes);
}

// Its rows once, on every rank the same share of them and of the heads, whatever passes the states. Nothing
// is claimed of these, nor of the kernels around a scan.
StepBound::Pass StepBound::recurrence(const ParallelLayout& layout, const LocalSizes& sizes) const {
  const Recurrence& r = sizes.recurrence;
  const double rows =
      std::min(real(sizes.tokens), real(question_.workload.seq_len * layout.micro_batch) / layout.cp);
  KernelWork work;
  work.flops = kSlack * rows * real(r.value_heads) * recurrence_row_flops(r.rule, r.key_dim, r.value_dim);
  const double forward = kernels_.recurrence_ns(work, question_.workload.dtype);
  work.flops *= kBackwardOfRecurrence;
  return {forward, kernels_.recurrence_ns(work, question_.workload.dtype)};
}

StepBound::LayerWork StepBound::layer_work(const ParallelLayout& layout, const LocalSizes& sizes,
                                           LayerParts parts) const {
  LayerWork work;
  if (parts.mixer != Mixer::none)
    add_region(work, layout, sizes, parts.mixer == Mixer::attention && question_.model.latent);
  if (parts.mixer == Mixer::attention) add_attention(work, sizes);
  if (parts.mixer == Mixer::recurrence) add_recurrence(work, sizes);
  if (parts.mlp == Mlp::none) return work;
  add_region(work, layout, sizes, false);
  add_mlp(work, layout, sizes, parts.mlp);
  return work;
}

StepBound::Region StepBound::region(const ParallelLayout& layout, const LocalSizes& sizes) const {
  const double gathered = real(size_bytes(question_.workload.dtype)) * real(sizes.tokens_tp) *
                          layout.row_ranks() * real(question_.model.hidden);
  const std::int64_t stride = strides_of(layout).tp;
  if (!layout.sequence_parallel) return {0, region(CollectiveKind::all_reduce, gathered, stride, layout.tp)};
  return {region(CollectiveKind::all_gather, gathered, stride, layout.tp),
          region(CollectiveKind::reduce_scatter, gathered, stride, layout.tp)};
}

void StepBound::add_region(LayerWork& work, const ParallelLayout& layout, const LocalSizes& sizes,
                           bool latent) const {
  const double between = real(size_bytes(question_.workload.dtype)) *
                         real(sizes.tokens_tp * question_.model.hidden),
               sum_ns = question_.software.fused_rows ? kernels_.riding_ns(3 * between)
                                                      : kernels_.memory_ns(3 * between),
               norm_ns = kernels_.memory_ns(2 * between);
  const Transformer& model = question_.model;
  work.forward_rows_ns += (model.norms_before ? norm_ns : 0) + (model.norms_behind ? norm_ns : 0) + sum_ns;
  // A norm reads its input and the gradient of its output. That before the region adds what it gives to the
  // gradient that goes from layer to layer; where there is none, a kernel of its own does.
  work.backward_rows_ns += (model.norms_before ? kernels_.memory_ns(4 * between) : sum_ns) +
                           (model.norms_behind ? kernels_.memory_ns(3 * between) : 0);
  if (model.norms_before) work.cheap_again_ns += norm_ns + launch_ns_;
  const Region moved = region(layout, sizes);
  // Latent attention gathers latent rows instead, and backward scatters their gradients: of neither anything
  // is claimed.
  if (!layout.sequence_parallel) {
    work.regions_ns += latent ? 0 : moved.scatter_ns;
    return;
  }
  work.regions_ns +=
      latent ? std::min(moved.gather_ns, moved.scatter_ns) : moved.gather_ns + moved.scatter_ns;
  work.gathered_again_ns += latent ? 0 : moved.gather_ns;
}

void StepBound::add_attention(LayerWork& work, const LocalSizes& sizes) const {
  const std::int64_t tokens = sizes.tokens, hidden = question_.model.hidden, gates = sizes.gate_width;
  if (question_.model.latent) {
    const auto [q_rank, kv_rank, rope_dim, v_head_dim] = *question_.model.latent;
    add_products(work, products(sizes.tokens_tp, hidden, q_rank), 1);
    add_products(work, products(sizes.tokens_tp, hidden, kv_rank + rope_dim), 1);
    add_products(work, products(tokens, q_rank > 0 ? q_rank : hidden, sizes.q_width), 1);
    add_products(work, products(tokens, kv_rank, sizes.up_width), 1);
  } else {
    add_products(work, products(tokens, hidden, sizes.q_width + sizes.kv_width + sizes.v_width + gates), 1);
  }
  add_products(work, products(tokens, sizes.out_width, hidden), 1);
  const double positions = positions_ns(sizes), width = real(size_bytes(question_.workload.dtype));
  work.forward_rows_ns += positions, work.backward_rows_ns += positions;
  if (question_.model.qkv_bias && !question_.model.latent) {  // added in place; its gradient reads rows
    const double rows = width * real(tokens * (sizes.q_width + sizes.kv_width + sizes.v_width + gates));
    work.forward_rows_ns += kernels_.memory_ns(2 * rows), work.backward_rows_ns += kernels_.memory_ns(rows);
  }
  if (question_.model.qk_norm) {
    const double qk = width * real(tokens * (sizes.q_width + sizes.kv_width));
    work.forward_rows_ns += kernels_.memory_ns(2 * qk), work.backward_rows_ns += kernels_.memory_ns(3 * qk);
  }
  if (gates == 0) return;
  // Output and gates are multiplied; backward both have gradients.
  const double gated = width * real(tokens * gates);
  work.forward_rows_ns += kernels_.memory_ns(3 * gated),
      work.backward_rows_ns += kernels_.memory_ns(5 * gated);
  work.cheap_again_ns += kernels_.memory_ns(3 * gated) + launch_ns_;
}

void StepBound::add_recurrence(LayerWork& work, const LocalSizes& sizes) const {
  const Recurrence& r = sizes.recurrence;
  const std::int64_t tokens = sizes.tokens, hidden = question_.model.hidden;
  add_products(work, products(tokens, hidden, r.projected()), 1);
  add_products(work, products(tokens, r.value_width(), hidden), 1);
  // The convolution reads and writes q, k and v, and backward their gradients, too; norm and gates read the
  // output and the gates, and write one row.
  const double width = real(size_bytes(question_.workload.dtype)),
               convolved = width * real(tokens * r.convolved()),
               values = width * real(tokens * r.value_width());
  work.forward_rows_ns += kernels_.memory_ns(2 * convolved) + kernels_.memory_ns(3 * values);
  work.backward_rows_ns += kernels_.memory_ns(3 * convolved) + kernels_.memory_ns(5 * values);
}

void StepBound::add_mlp(LayerWork& work, const ParallelLayout& layout, const LocalSizes& sizes,
                        Mlp mlp) const {
  const std::int64_t tokens = sizes.tokens, hidden = question_.model.hidden, columns = sizes.columns(mlp),
                     ups = question_.model.up_matrices();
  if (mlp == Mlp::experts) add_experts(work, layout, sizes);
  if (columns == 0) return;
  // In pieces of its rows.
  const std::int64_t parts = layout.mlp_chunks;
  const Products up = products(tokens / parts, hidden, ups * columns),
                 down = products(tokens / parts, columns, hidden);
  add_products(work, up, parts), add_products(work, down, parts);
  if (parts > 1) work.mlp_again_ns = kSlack * real(parts) * up.forward_ns;
  // Rows before the activation and behind it; backward also the gradients of both.
  const double activated = real(size_bytes(question_.workload.dtype)) * real(tokens * columns);
  const double activation_ns = kernels_.memory_ns(real(ups + 1) * activated);
  work.forward_rows_ns += activation_ns, work.cheap_again_ns += activation_ns + launch_ns_;
  work.backward_rows_ns += kernels_.memory_ns(real(2 * ups + 1) * activated);
}

void StepBound::add_products(LayerWork& work, const Products& one, std::int64_t times) {
  for (double Products::*ns : {&Products::forward_ns, &Products::input_ns, &Products::weight_ns})
    work.products.*ns += kSlack * real(times) * one.*ns;
}

void StepBound::add_experts(LayerWork& work, const ParallelLayout& layout, const LocalSizes& sizes) const {
  const Experts& model = *question_.model.experts;
  const std::int64_t tokens = sizes.tokens, hidden = question_.model.hidden, rows = sizes.expert_tokens,
                     columns = sizes.expert_columns, ups = question_.model.up_matrices();
  const double width = real(size_bytes(question_.workload.dtype));
  const bool travel = layout.ep > 1, sorts = travel && sizes.experts > 1;
  const Products up = experts(rows, sizes.experts, hidden, ups * columns),
                 down = experts(rows, sizes.experts, columns, hidden);
  add_products(work, products(tokens, hidden, model.count), 1);
  add_products(work, up, 1), add_products(work, down, 1);
  work.experts_ns = kSlack * (up.forward_ns + down.forward_ns);
  // Rows of tokens become rows of experts, or the other way round; a sort reads and writes the latter. What
  // else these kernels read, the router's weights above all, is a few bytes for each row.
  const double all = width * real(rows * hidden), inside = width * real(rows * columns),
               logits = width * real(tokens * model.count),
               routed_ns = 2 * kernels_.memory_ns(all + width * real(tokens * hidden)),
               sorted_ns = sorts ? 2 * kernels_.memory_ns(2 * all) : 0;
  const double activation_ns = kernels_.memory_ns(real(ups + 1) * inside);
  work.forward_rows_ns += kernels_.memory_ns(logits) + routed_ns + sorted_ns + activation_ns;
  work.cheap_again_ns += activation_ns + launch_ns_;
  work.backward_rows_ns +=
      kernels_.memory_ns(2 * logits) + routed_ns + sorted_ns + kernels_.memory_ns(real(2 * ups + 1) * inside);
  work.sorts = sorts ? kSorts : 0;
  if (!travel) return;
  // Rows go to their experts, and outputs return. Both are waited for, since kernels run in order: only the
  // gradients of gate and up are computed while gradients of rows return, if these need not be unsorted
  // first.
  const double once =
      kSlack * collective_ns(CollectiveKind::all_to_all, all, spread_of_ep(layout), question_.cluster);
  work.forward_moved_ns = 2 * once;
  work.backward_moved_ns = once + (sorts ? once : std::max(0.0, once - up.weight_ns));
}
std::vector<StepBound::Pass> StepBound::layers(const ParallelLayout& layout, const Shared& shared,
                                               bool whole_family, const AttentionTimes* replayed) const {
  const auto is_least_alone = [&](const LayerKind& kind) {
    return facts(
               strategy_of(layout, attention_problem(question_.model, question_.workload, layout, kind)).core)
        .is_least_alone;
  };
  std::vector<Pass> passes;
  for (std::size_t kind = 0; kind < pairs_.size(); ++kind) {
    Attention of_attention = attention(layout, shared.sizes, kind, whole_family);
    const Mixer mixer = question_.model.kinds[kind].mixer;
    if (replayed != nullptr && mixer == Mixer::attention && !is_least_alone(question_.model.kinds[kind])) {
      // Its kernels at least, as fast as they are without transfers beside them.
      const auto& [forward, backward] = replayed->of_kinds[kind];
      const SoftwareProfile& software = question_.software;
      Pass& kernels = of_attention.kernels;
      kernels.forward_ns =
          std::max(kernels.forward_ns, kSlack * software.forward_progress * forward.kernels_ns);
      kernels.backward_ns =
          std::max(kernels.backward_ns, kSlack * software.backward_progress * backward.kernels_ns);
    } else if (replayed != nullptr && mixer != Mixer::none) {
      const auto& [forward, backward] = replayed->of_kinds[kind];
      of_attention.kernels = {kSlack * forward.kernels_ns, kSlack * backward.kernels_ns};
      // Its first transfers may begin beside the positions of the queries; backward, keys and values may come
      // long before.
      if (mixer == Mixer::attention)
        of_attention.moved.forward_ns = std::max(0.0, kSlack * forward.exposed_ns - shared.positions_ns);
    }
    passes.push_back(layer(layout, shared, static_cast<int>(kind), of_attention, whole_family));
  }
  return passes;
}

StepBound::Pass StepBound::layer(const ParallelLayout& layout, const Shared& shared, int kind,
                                 const Attention& of_attention, bool whole_family) const {
  const LayerParts parts = question_.model.parts_of(question_.model.kinds[idx(kind)]);
  const Pass &kernels = of_attention.kernels, &moved = of_attention.moved;
  Pass pass;
  const LayerWork& beside = shared.work[parts];
  const LayerLaunches& launches = launches_[idx(kind)];
  const Products& of_layer = beside.products;
  pass.forward_ns = of_layer.forward_ns + beside.forward_rows_ns + kernels.forward_ns + moved.forward_ns +
                    beside.regions_ns + beside.forward_moved_ns +
                    (launches.forward + beside.sorts) * launch_ns_;
  const double work = of_layer.input_ns + of_layer.weight_ns + kernels.backward_ns + beside.backward_rows_ns +
                      beside.backward_moved_ns + (launches.backward + beside.sorts) * launch_ns_;
  const double chain = of_layer.input_ns + kernels.backward_ns + moved.backward_ns + beside.regions_ns +
                       beside.backward_moved_ns;
  double again = 0;
  const Recompute::Kind recompute = layout.recompute.kind;
  if (!whole_family && (recompute == Recompute::Kind::full || recompute == Recompute::Kind::every)) {
    again = recomputed_share(layout, question_.model, kind) * pass.forward_ns;
    pass.again_moved_ns = std::min(again, moved.forward_ns + beside.regions_ns + beside.forward_moved_ns);
  }
  if (!whole_family && recompute == Recompute::Kind::selective) again = beside.cheap_again_ns;
  // Inputs are gathered again for the gradients of weights.
  pass.backward_ns =
      std::max({work, chain, beside.regions_ns + beside.gathered_again_ns}) + again + beside.mlp_again_ns;
  return pass;
}

}  // namespace cp::sim

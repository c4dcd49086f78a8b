#include "sim/planner/search/bound.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "shared/base/index.h"
#include "shared/context_parallel/cores.h"
#include "shared/context_parallel/pair_counts.h"
#include "shared/transformer/flops.h"
#include "sim/cost/schedule/pipeline.h"
#include "sim/cost/timeline/host_cost.h"

namespace cp::sim {
namespace {

// All constants of this file err towards a lower bound. One that errs too far only lets more layouts be
// replayed; one that does not err enough breaks the promise that no layout beats its bound, on which the
// search rests. The property StepBound.IsBelowTheTimeline (tests/planner/bound_test.cc) fails then.

// The formulas below divide exactly what plans split into whole rows and heads, and add up in another order
// than the replay. A per mille covers both.
constexpr double kSlack = 0.999;

// Kernels that experts on several ranks have in addition to those on one (expert_writer.cc). Where a rank has
// several experts, rows and weights that arrived are sorted, and outputs are unsorted; backward the gradients
// of all three.
constexpr double kSorts = 3;

double real(std::int64_t number) { return static_cast<double>(number); }

// Neighbours in a group of tp, cp or sharding ranks are that many ranks apart.
struct Strides {
  std::int64_t tp = 1, cp = 1, dp = 1, replicas = 1;
  bool cp_is_slower = false;  // than dp: neighbours among dp x cp are neighbours of dp
};
Strides strides_of(const ParallelLayout& layout) {
  Strides strides;
  std::int64_t stride = 1;
  bool has_cp = false;  // from the fastest axis on
  const std::vector<MeshAxis> axes = mesh_axes(layout);
  for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
    if (axis->name == "tp") strides.tp = stride;
    if (axis->name == "cp") strides.cp = stride, has_cp = true;
    if (axis->name == "dp_shard") strides.dp = stride, strides.cp_is_slower = !has_cp;
    if (axis->name == "dp_replicate") strides.replicas = stride;
    stride *= axis->size;
  }
  return strides;
}

// The smallest of a strategy's pieces, as a share of a rank's heads. Where ranks share a kv head, nothing is
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
  const std::int64_t fewest = model.layers / (layout.pp * layout.virtual_stages);
  const auto share = [&](std::int64_t number) {
    return real(number / layout.recompute.every) / real(number);
  };
  return std::min(share(fewest), share(fewest + 1));
}

}  // namespace

StepBound::StepBound(const PlanQuestion& question)
    : question_(question),
      kernels_(question_.cluster, question_.software),
      launches_(launches_of_kinds(question)),
      layers_of_kinds_(layers_of_kinds(question.model)),
      layers_of_parts_(layers_of_parts(question.model, layers_of_kinds_)) {
  for (const LayerKind& kind : question.model.kinds)
    pairs_.push_back(allowed_pairs(question.model, question.workload, kind));
  const Cluster& cluster = question.cluster;
  best_hbm_ = cluster.gpu.hbm_gbps;
  launch_ns_ = cluster.gpu.kernel_launch_us * 1e3;
  // Curves have their best at some size, rates at none: cubes far beyond all that is computed come close to
  // it.
  for (double flops = 1e6; flops < 1e26; flops *= flops < 1e17 ? 1.05 : 10) {
    const double side = std::cbrt(flops / 2);
    const KernelWork work = product_work(side, side, side);
    best_product_ = std::max(best_product_, flops / kernels_.product_ns(work, question.workload.dtype));
  }
}

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

void StepBound::add_region(LayerWork& work, const ParallelLayout& layout, const LocalSizes& sizes,
                           bool latent) const {
  const double width = real(size_bytes(question_.workload.dtype));
  // Norms and the sums behind them: read and written once, and backward at least as much.
  const double between = width * real(sizes.tokens_tp * question_.model.hidden);
  const double sum_ns = question_.software.fused_rows ? kernels_.riding_ns(3 * between)
                                                      : kernels_.memory_ns(3 * between),
               norms = (question_.model.norms_before ? 1 : 0) + (question_.model.norms_behind ? 1 : 0),
               rows_ns = norms * kernels_.memory_ns(2 * between) + sum_ns;
  work.forward_rows_ns += rows_ns, work.backward_rows_ns += rows_ns;
  const std::int64_t stride = strides_of(layout).tp;
  const double gathered = width * real(sizes.tokens_tp) * layout.row_ranks() * real(question_.model.hidden);
  // Latent attention gathers latent rows instead, and backward scatters their gradients: of neither anything
  // is claimed.
  if (!layout.sequence_parallel) {
    work.regions_ns += latent ? 0 : region(CollectiveKind::all_reduce, gathered, stride, layout.tp);
    return;
  }
  const double gather = region(CollectiveKind::all_gather, gathered, stride, layout.tp),
               scatter = region(CollectiveKind::reduce_scatter, gathered, stride, layout.tp);
  work.regions_ns += latent ? std::min(gather, scatter) : gather + scatter;
  work.gathered_again_ns += latent ? 0 : gather;
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
  const double positions = positions_ns(sizes);
  work.forward_rows_ns += positions, work.backward_rows_ns += positions;
  if (gates == 0) return;
  // Output and gates are multiplied; backward both have gradients.
  const double gated = real(size_bytes(question_.workload.dtype)) * real(tokens * gates);
  work.forward_rows_ns += kernels_.memory_ns(3 * gated),
      work.backward_rows_ns += kernels_.memory_ns(5 * gated);
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
  // The last product of all, which is not made again.
  work.last_product_ns = kSlack * real(parts) * down.forward_ns;
  if (parts > 1) work.mlp_again_ns = kSlack * real(parts) * up.forward_ns;
  // Rows before the activation and behind it; backward also the gradients of both.
  const double activated = real(size_bytes(question_.workload.dtype)) * real(tokens * columns);
  work.forward_rows_ns += kernels_.memory_ns(real(ups + 1) * activated);
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
  work.last_product_ns = kSlack * down.forward_ns;
  // Rows of tokens become rows of experts, or the other way round; a sort reads and writes the latter. What
  // else these kernels read, the router's weights above all, is a few bytes for each row.
  const double all = width * real(rows * hidden), inside = width * real(rows * columns),
               logits = width * real(tokens * model.count),
               routed_ns = 2 * kernels_.memory_ns(all + width * real(tokens * hidden)),
               sorted_ns = sorts ? 2 * kernels_.memory_ns(2 * all) : 0;
  work.forward_rows_ns +=
      kernels_.memory_ns(logits) + routed_ns + sorted_ns + kernels_.memory_ns(real(ups + 1) * inside);
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

StepBound::Shared StepBound::shared(const ParallelLayout& layout) const {
  Shared shared;
  shared.sizes = local_sizes(question_.model, question_.workload, layout);
  const LocalSizes& sizes = shared.sizes;
  for (const LayerParts parts : kLayerParts) {
    if (layers_of_parts_[parts] > 0) shared.work[parts] = layer_work(layout, sizes, parts);
  }
  shared.positions_ns = positions_ns(sizes);
  if (question_.workload.phase != Phase::training) return shared;
  for (const LayerParts parts : kLayerParts) {
    if (layers_of_parts_[parts] == 0) continue;
    shared.shards[parts] = sharding(layout, sizes.layer[parts]);
    if (parts.mlp == Mlp::experts) shared.shards[parts] += sharding_of_experts(layout, sizes.expert_layer);
  }
  ByParts<std::int64_t> of_rank = layers_of_parts_;  // of the one that has the head, which updates last
  if (layout.pp > 1) {
    of_rank = {};
    std::int64_t first = 0;
    for (const std::int64_t count : stage_layers(question_.model, layout)) {
      shared.stages.push_back(layers_of_kinds(question_.model, first, count));
      first += count;
      if (static_cast<int>(shared.stages.size()) % layout.pp != 0) continue;
      const ByParts<std::int64_t> more = layers_of_parts(question_.model, shared.stages.back());
      for (const LayerParts parts : kLayerParts) of_rank[parts] += more[parts];
    }
  }
  shared.update_ns = update_ns(layout, shared, of_rank);
  return shared;
}

std::vector<StepBound::Pass> StepBound::layers(const ParallelLayout& layout, const Shared& shared,
                                               bool whole_family, const AttentionTimes* replayed) const {
  const auto is_least_alone = [&](const LayerKind& kind) {
    if (kind.mixer != Mixer::attention) return kind.mixer == Mixer::recurrence;
    return facts(
               strategy_of(layout, attention_problem(question_.model, question_.workload, layout, kind)).core)
        .is_least_alone;
  };
  std::vector<Pass> passes;
  for (std::size_t kind = 0; kind < pairs_.size(); ++kind) {
    Attention of_attention = attention(layout, shared.sizes, kind, whole_family);
    const Mixer mixer = question_.model.kinds[kind].mixer;
    if (replayed != nullptr && is_least_alone(question_.model.kinds[kind])) {
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
    again = recomputed_share(layout, question_.model, kind) *
            (of_layer.forward_ns - beside.last_product_ns + kernels.forward_ns + beside.forward_moved_ns / 2);
  }
  // Inputs are gathered again for the gradients of weights.
  pass.backward_ns =
      std::max({work, chain, beside.regions_ns + beside.gathered_again_ns}) + again + beside.mlp_again_ns;
  return pass;
}

StepBound::Pass StepBound::head(const ParallelLayout& layout, const LocalSizes& sizes,
                                bool whole_family) const {
  const bool training = question_.workload.phase == Phase::training;
  if (whole_family) {  // chunks of any size
    const std::int64_t rows = training ? sizes.tokens : layout.micro_batch;
    const double ns =
        kSlack * 2 * real(rows) * real(question_.model.hidden) * real(sizes.vocab) / best_product_;
    // The constructor looks for best_product_ at sizes 5 % apart, so that a size in between may be a little
    // faster.
    return {ns * 0.98, 2 * ns * 0.98};
  }
  const std::int64_t tokens = training ? sizes.tokens / layout.loss_chunks : layout.micro_batch;
  const Products once = products(tokens, question_.model.hidden, sizes.vocab);
  const double times = kSlack * real(training ? layout.loss_chunks : 1);
  return {times * once.forward_ns, times * (once.input_ns + once.weight_ns)};
}

// How the ranks i * first.stride + j * second.stride lie on the nodes.
Spread StepBound::spread_of_ranks(const Ranks& first, const Ranks& second) const {
  const int gpus = question_.cluster.node.gpus;
  std::int64_t here = 0;
  for (std::int64_t i = 0; i < first.size && i * first.stride < gpus; ++i) {
    for (std::int64_t j = 0; j < second.size && i * first.stride + j * second.stride < gpus; ++j) ++here;
  }
  const std::int64_t all = first.size * second.size;
  return {static_cast<int>(all), static_cast<int>(ceil_div(all, here)), static_cast<int>(here)};
}

StepBound::Sharding StepBound::Sharding::times(std::int64_t gathers, std::int64_t scatters) const {
  const double g = std::max(real(gathers), 0.0), s = real(scatters);
  return {g * gather_ns, s * scatter_ns, g * port_gather_ns, s * port_scatter_ns};
}

StepBound::Sharding& StepBound::Sharding::operator+=(const Sharding& more) {
  gather_ns += more.gather_ns, scatter_ns += more.scatter_ns;
  port_gather_ns += more.port_gather_ns, port_scatter_ns += more.port_scatter_ns;
  return *this;
}

double StepBound::Sharding::ns() const {
  return std::max({gather_ns, scatter_ns, port_gather_ns + port_scatter_ns});
}

StepBound::Sharding StepBound::sharding(const ParallelLayout& layout, std::int64_t parameters) const {
  if (layout.sharding_size() == 1) return {};
  const Strides strides = strides_of(layout);
  const bool with_cp = layout.sharding == ShardingGroup::dp_shard_cp;
  return sharding(spread_of_ranks({strides.dp, layout.dp_shard}, {strides.cp, with_cp ? layout.cp : 1}),
                  parameters);
}

StepBound::Sharding StepBound::sharding_of_experts(const ParallelLayout& layout,
                                                   std::int64_t parameters) const {
  if (layout.ep == 1) return sharding(layout, parameters);
  const int shards = layout.sharding_size() / layout.ep;
  if (shards <= 1) return {};
  const auto ranks = along_data(layout, layout.ep, shards);
  return ranks ? sharding(spread_of_ranks(ranks->first, ranks->second), parameters) : Sharding{};
}

StepBound::Sharding StepBound::sharding(const Spread& spread, std::int64_t parameters) const {
  const Cluster& cluster = question_.cluster;
  const double numel = real(parameters);
  const double gathered = numel * real(size_bytes(question_.workload.dtype)),
               scattered = numel * real(size_bytes(question_.workload.gradient_dtype));
  // Through the network a ring enters a node at each of its members.
  const double port = spread.nodes > 1 ? kSlack * (spread.gpus - 1) / spread.gpus / spread.fewest_on_a_node /
                                             cluster.network.nic_gbps
                                       : 0;
  return {kSlack * collective_ns(CollectiveKind::all_gather, gathered, spread, cluster),
          kSlack * collective_ns(CollectiveKind::reduce_scatter, scattered, spread, cluster), gathered * port,
          scattered * port};
}

// Ranks 0, step, 2 * step, ... of those of dp_shard x cp, as neighbours in the cluster are numbered
// (RankGroups::data_index). Nothing where they are no grid.
std::optional<std::pair<StepBound::Ranks, StepBound::Ranks>> StepBound::along_data(
    const ParallelLayout& layout, std::int64_t step, std::int64_t count) const {
  const Strides strides = strides_of(layout);
  const std::int64_t inner = strides.cp_is_slower ? layout.dp_shard : layout.cp,
                     inner_stride = strides.cp_is_slower ? strides.dp : strides.cp,
                     outer_stride = strides.cp_is_slower ? strides.cp : strides.dp;
  if (step % inner == 0) return std::pair{Ranks{outer_stride * (step / inner), count}, Ranks{}};
  if (inner % step != 0) return std::nullopt;
  const std::int64_t within = std::min(count, inner / step);
  if (count % within != 0) return std::nullopt;
  return std::pair{Ranks{inner_stride * step, within}, Ranks{outer_stride, count / within}};
}

Spread StepBound::spread_of_ep(const ParallelLayout& layout) const {
  if (const auto ranks = along_data(layout, 1, layout.ep))
    return spread_of_ranks(ranks->first, ranks->second);
  return {layout.ep, 1, layout.ep};  // on one node, where it is fastest
}

double StepBound::update_ns(const ParallelLayout& layout, const Shared& shared,
                            const ByParts<std::int64_t>& layers) const {
  const Workload& workload = question_.workload;
  const LocalSizes& sizes = shared.sizes;
  std::int64_t dense = 0;
  for (const LayerParts parts : kLayerParts) dense += layers[parts] * sizes.layer[parts];
  const std::int64_t experts = count_of(layers, Mlp::experts) * sizes.expert_layer,
                     of_experts = experts / std::max(1, layout.sharding_size() / layout.ep),
                     of_dense = dense / layout.sharding_size(), shard = of_dense + of_experts;
  const std::int64_t state = workload.optimizer.states * size_bytes(workload.optimizer.state_dtype);
  const double bytes = real(shard) * real(8 + 2 * state + size_bytes(workload.gradient_dtype)),
               optimizer_ns = kSlack * (workload.optimizer.offload
                                            ? bytes / host_rates(question_.cluster.node).memory_gbps
                                            : memory(bytes));
  // Gradients are added up over replicas before the norm of all of them is known, which the optimizer needs.
  const double summed_ns = replicas_ns(layout, of_dense) + replicas_of_experts_ns(layout, of_experts);
  if (!layout.keeps_whole_parameters() || layout.sharding_size() == 1) return summed_ns + optimizer_ns;
  // What stays whole is scattered before that, and gathered behind the optimizer.
  Sharding once;
  for (const LayerParts parts : kLayerParts) {
    if (layers[parts] == 0) continue;
    if (layout.keeps_whole_gradients()) {
      once += sharding(layout, layers[parts] * sizes.layer[parts]);
    } else {
      once += shared.shards[parts].times(layers[parts], 0);
    }
  }
  if (layout.keeps_whole_gradients() && experts > 0) once += sharding_of_experts(layout, experts);
  return std::max(summed_ns, once.scatter_ns) + std::max(optimizer_ns, once.gather_ns);
}

double StepBound::replicas_ns(const ParallelLayout& layout, std::int64_t shard) const {
  const Strides strides = strides_of(layout);
  const int beside = layout.sharding == ShardingGroup::dp_shard ? layout.cp : 1;
  return summed_ns({strides.replicas, layout.dp_replicate}, {strides.cp, beside}, shard);
}

double StepBound::replicas_of_experts_ns(const ParallelLayout& layout, std::int64_t shard) const {
  if (layout.ep == 1) return replicas_ns(layout, shard);
  const std::int64_t shards = std::max(1, layout.sharding_size() / layout.ep),
                     copies = layout.dp_shard * layout.cp / layout.ep / shards;
  if (copies > 1) return 0;  // they lie in no simple grid: nothing is claimed
  return summed_ns({strides_of(layout).replicas, layout.dp_replicate}, {}, shard);
}

double StepBound::summed_ns(const Ranks& first, const Ranks& second, std::int64_t shard) const {
  if (first.size * second.size == 1 || shard == 0) return 0;
  const double bytes = real(shard) * real(size_bytes(question_.workload.gradient_dtype));
  return kSlack *
         collective_ns(CollectiveKind::all_reduce, bytes, spread_of_ranks(first, second), question_.cluster);
}

double StepBound::step_ns(const ParallelLayout& layout, const Shared& shared, bool whole_family,
                          const AttentionTimes* replayed) const {
  const std::vector<Pass> of_kinds = this->layers(layout, shared, whole_family, replayed);
  const Pass of_layers = sum_of(of_kinds, layers_of_kinds_),
             of_head = head(layout, shared.sizes, whole_family);
  if (question_.workload.phase != Phase::training) return of_layers.forward_ns + of_head.forward_ns;
  const std::int64_t times = accumulation(question_.workload, layout);
  if (layout.pp == 1) {
    Sharding forward_shards, backward_shards;
    for (const LayerParts parts : kLayerParts) {
      // The first two layers of a pass may have been gathered before it began, since there are two slots.
      const std::int64_t layers = layers_of_parts_[parts],
                         gathers = layout.keeps_whole_parameters() ? 0 : layers - 2,
                         scatters = layout.keeps_whole_gradients() ? 0 : layers;
      forward_shards += shared.shards[parts].times(gathers, 0);
      backward_shards += shared.shards[parts].times(gathers, scatters);
    }
    const double forward = std::max(of_layers.forward_ns, forward_shards.ns()) + of_head.forward_ns;
    const double backward =
        of_head.backward_ns + std::max(of_layers.backward_ns, backward_shards.ns() - of_head.backward_ns);
    return real(times) * (forward + backward) + shared.update_ns;
  }
  const PipelineBound pipeline = this->pipeline(shared, of_kinds, of_head);
  return pipeline_bound_ns(pipeline.stages, layout.pp, times) + pipeline.update_ns;
}

PipelineBound StepBound::pipeline(const ParallelLayout& layout, const AttentionTimes* replayed) const {
  const Shared shared = this->shared(layout);
  return pipeline(shared, layers(layout, shared, false, replayed), head(layout, shared.sizes, false));
}

PipelineBound StepBound::pipeline(const Shared& shared, const std::vector<Pass>& of_kinds,
                                  const Pass& of_head) {
  PipelineBound pipeline;
  pipeline.stages.reserve(shared.stages.size());
  for (const std::vector<std::int64_t>& of_stage : shared.stages) {
    const Pass sum = sum_of(of_kinds, of_stage);
    pipeline.stages.push_back({sum.forward_ns, sum.backward_ns, 0, 0});
  }
  pipeline.stages.back().forward_ns += of_head.forward_ns + of_head.backward_ns;
  pipeline.update_ns = shared.update_ns;
  return pipeline;
}

StepBound::Pass StepBound::sum_of(const std::vector<Pass>& of_kinds,
                                  const std::vector<std::int64_t>& layers_of_kind) {
  Pass sum;
  for (std::size_t kind = 0; kind < of_kinds.size(); ++kind) {
    sum.forward_ns += real(layers_of_kind[kind]) * of_kinds[kind].forward_ns;
    sum.backward_ns += real(layers_of_kind[kind]) * of_kinds[kind].backward_ns;
  }
  return sum;
}

double FamilyBound::ns(const ParallelLayout& member) {
  const PlanQuestion& question = bound_.question_;
  const LocalSizes sizes = local_sizes(question.model, question.workload, member);
  if (!shared_ || sizes.tokens != shared_->sizes.tokens || sizes.mlp_tokens != shared_->sizes.mlp_tokens)
    shared_ = bound_.shared(member);
  return bound_.step_ns(member, *shared_, false, nullptr);
}

}  // namespace cp::sim

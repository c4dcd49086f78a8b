// What the layers of a step take at least: their products, rows, attention and recurrences, and what these
// wait for.
#include <algorithm>
#include <cmath>
#include <vector>

#include "shared/base/index.h"
#include "shared/context_parallel/cores.h"
#include "sim/planner/search/bound.h"
#include "sim/planner/search/bound_terms.h"

namespace cp::sim {

using namespace bound_terms;

namespace {

// Kernels that experts on several ranks have in addition to those on one (expert_writer.cc). Where a rank has
// several experts, rows and weights that arrived are sorted, and outputs are unsorted; backward the gradients
// of all three.
constexpr double kSorts = 3;

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
  const auto share = [&](std::int64_t number) {
    return real(number / layout.recompute.every) / real(number);
  };
  if (model.prediction_layers > 0) {  // the last stage may have far fewer than the others
    double least = 1;
    for (const std::int64_t count : stage_layers(model, layout)) least = std::min(least, share(count));
    return least;
  }
  const std::int64_t fewest = model.layers / (std::int64_t{layout.pp} * layout.virtual_stages);
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
  return region_ns(kind, bytes, spread_of({stride, size}), question_.cluster, collectives_);
}

// Found once for each group: it takes longer than all else of a bound.
Spread StepBound::spread_of(const Ranks& group) const {
  const std::scoped_lock lock(mutex_);
  const auto [at, is_new] = spreads_.try_emplace({group.stride, group.size}, Spread{});
  if (is_new) {
    std::vector<Rank> ranks;
    for (std::int64_t i = 0; i < group.size; ++i) ranks.push_back(static_cast<Rank>(i * group.stride));
    at->second = cp::sim::spread_of(ranks, question_.cluster);
  }
  return at->second;
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

// Its rows once, on every rank the same share of them and of the heads, whatever passes the states. Nothing
// is claimed of these, nor of the kernels around a scan. Where a token is written, and on one rank, a cached
// state is read and written; with heads each rank has a part of it.
StepBound::Pass StepBound::recurrence(const ParallelLayout& layout, const LocalSizes& sizes) const {
  const Recurrence& r = sizes.recurrence;
  const RecurrenceProblem problem = recurrence_problem(question_.model, question_.workload, layout);
  const double rows = std::min(real(sizes.tokens), real(problem.seq_len * layout.micro_batch) / layout.cp);
  KernelWork work;
  if (problem.cached_state && (layout.cp == 1 || question_.workload.phase == Phase::decode))
    work.bytes = kSlack * 2 * real(problem.state_numel() * size_bytes(DType::f32)) / layout.cp;
  work.flops = kSlack * rows * real(r.value_heads) * recurrence_row_flops(r.rule, r.key_dim, r.value_dim);
  const double forward = kernels_.recurrence_ns(work, question_.workload.dtype);
  work.flops *= kBackwardOfRecurrence;
  return {forward, kernels_.recurrence_ns(work, question_.workload.dtype)};
}

StepBound::LayerWork StepBound::layer_work(const ParallelLayout& layout, const LocalSizes& sizes,
                                           LayerParts parts) const {
  const Spread of_ep = layout.ep > 1 ? spread_of_ep(layout) : Spread{};
  const WorkKey key{
      parts.mixer,
      parts.mlp,
      {layout.tp, layout.sequence_parallel ? 1 : 0, layout.mlp_chunks, of_ep.gpus, of_ep.fewest_on_a_node},
      {strides_of(layout).tp, sizes.tokens, sizes.tokens_tp}};
  {
    const std::scoped_lock lock(mutex_);
    if (const auto known = works_.find(key); known != works_.end()) return known->second;
  }
  const LayerWork work = made_layer_work(layout, sizes, parts);
  const std::scoped_lock lock(mutex_);
  return works_.try_emplace(key, work).first->second;
}

StepBound::LayerWork StepBound::made_layer_work(const ParallelLayout& layout, const LocalSizes& sizes,
                                                LayerParts parts) const {
  LayerWork work;
  if (parts.mixer != Mixer::none)
    add_region(work, layout, sizes, parts.mixer == Mixer::attention && question_.model.latent);
  if (parts.mixer == Mixer::attention) add_attention(work, layout, sizes);
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
  work.regions += 1, work.gradients_ns = moved.gather_ns;
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
  // With Mamba-2 both also read v, which skips the recurrence, and its gradient is written and then added.
  const bool skips = r.rule == RecurrenceRule::decay;
  const double norm_ns = kernels_.memory_ns((skips ? 4 : 3) * values);
  work.forward_rows_ns += kernels_.memory_ns(2 * convolved) + norm_ns;
  work.backward_rows_ns += kernels_.memory_ns(3 * convolved) + kernels_.memory_ns((skips ? 7 : 5) * values);
  if (skips)
    work.backward_rows_ns +=
        question_.software.fused_rows ? kernels_.riding_ns(3 * values) : kernels_.memory_ns(3 * values);
  work.cheap_again_ns += norm_ns + launch_ns_;
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
  for (double Products::*ns : {&Products::forward_ns, &Products::input_ns, &Products::weight_ns})
    work.shared_experts.*ns = mlp == Mlp::experts ? kSlack * real(parts) * (up.*ns + down.*ns) : 0;
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
  for (double Products::*ns : {&Products::forward_ns, &Products::input_ns, &Products::weight_ns})
    work.experts.*ns = kSlack * (up.*ns + down.*ns);
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
  work.to_experts_ns = once, work.forward_moved_ns = 2 * once;
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
      of_attention.backward_ns =
          kSlack * (software.backward_progress * backward.kernels_ns + backward.behind_ns);
    } else if (replayed != nullptr && mixer != Mixer::none) {
      const auto& [forward, backward] = replayed->of_kinds[kind];
      of_attention.kernels = {kSlack * forward.kernels_ns, kSlack * backward.kernels_ns};
      of_attention.backward_ns = kSlack * (backward.kernels_ns + backward.behind_ns);
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
  LayerWork beside = shared.work[parts];
  if (expands_before(layout, whole_family)) {
    for (double Products::*ns : {&Products::forward_ns, &Products::input_ns, &Products::weight_ns})
      beside.products.*ns += beside.expanding.*ns;
    beside.forward_rows_ns += beside.expanding_rows_ns, beside.backward_rows_ns += beside.expanding_rows_ns;
  }
  const LayerLaunches& launches = launches_[idx(kind)];
  const Products& of_layer = beside.products;
  pass.forward_ns = of_layer.forward_ns + beside.forward_rows_ns + kernels.forward_ns + moved.forward_ns +
                    beside.regions_ns + beside.forward_moved_ns +
                    (launches.forward + beside.sorts) * launch_ns_;
  const double work = of_layer.input_ns + of_layer.weight_ns +
                      std::max(kernels.backward_ns, of_attention.backward_ns) + beside.backward_rows_ns +
                      beside.backward_moved_ns + (launches.backward + beside.sorts) * launch_ns_;
  const double chain = of_layer.input_ns + kernels.backward_ns + moved.backward_ns + beside.regions_ns +
                       beside.backward_moved_ns;
  pass.mixer_forward_ns = kernels.forward_ns, pass.mixer_backward_ns = kernels.backward_ns;
  double again = 0;
  const Recompute::Kind recompute = layout.recompute.kind;
  if (!whole_family && (recompute == Recompute::Kind::full || recompute == Recompute::Kind::every)) {
    pass.again_ns = again = recomputed_share(layout, question_.model, kind) * pass.forward_ns;
    pass.again_moved_ns = std::min(again, moved.forward_ns + beside.regions_ns + beside.forward_moved_ns);
  }
  if (!whole_family && recompute == Recompute::Kind::selective) again = beside.cheap_again_ns;
  // Of the gradients that regions wait for, rows that are made again may hide some; and where the whole layer
  // is, what comes last of that may hide those of the first region.
  double waited_ns = beside.regions * beside.gradients_ns;
  if (!whole_family && recompute == Recompute::Kind::selective) {
    waited_ns = std::max(0.0, waited_ns - again);
  } else if (whole_family || recompute != Recompute::Kind::none) {
    waited_ns = std::max(0.0, waited_ns - beside.gradients_ns);
  }
  // Inputs are gathered again for the gradients of weights.
  pass.backward_ns = std::max({work + waited_ns, chain, beside.regions_ns + beside.gathered_again_ns}) +
                     again + beside.mlp_again_ns;
  return pass;
}

}  // namespace cp::sim

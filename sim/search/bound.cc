#include "sim/search/bound.h"

#include <algorithm>
#include <vector>

#include "shared/transformer/flops.h"
#include "sim/schedule/pipeline.h"

namespace cp::sim {
namespace {

// Rounding and remainders of splits that the formulas below leave out.
constexpr double kSlack = 0.999;

double real(std::int64_t number) { return static_cast<double>(number); }

// Neighbours in a group of tp, cp or sharding ranks are that many ranks apart.
struct Strides {
  std::int64_t tp = 1, cp = 1, dp = 1;
};
Strides strides_of(const ParallelLayout& layout) {
  Strides strides;
  std::int64_t stride = 1;
  const std::vector<MeshAxis> axes = mesh_axes(layout);
  for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
    if (axis->name == "tp") strides.tp = stride;
    if (axis->name == "cp") strides.cp = stride;
    if (axis->name == "dp_shard") strides.dp = stride;
    stride *= axis->size;
  }
  return strides;
}

// Of the layers, at least.
double recomputed_share(const ParallelLayout& layout, std::int64_t layers) {
  if (layout.recompute.kind == Recompute::Kind::full) return 1;
  const std::int64_t fewest = layers / (layout.pp * layout.virtual_stages);
  const auto share = [&](std::int64_t number) {
    return real(number / layout.recompute.every) / real(number);
  };
  return std::min(share(fewest), share(fewest + 1));
}

double best_of(const std::vector<AttentionCurve>& curves, bool backward, double peak) {
  double best = 0;
  for (const AttentionCurve& curve : curves) {
    if (curve.backward != backward) continue;
    for (const CurvePoint& point : curve.tflops.points()) best = std::max(best, point.y);
  }
  return best == 0 ? peak : std::min(best, peak);
}

}  // namespace

StepBound::StepBound(const PlanQuestion& question)
    : question_(question),
      kernels_(question_.cluster, question_.software),
      pairs_(allowed_pairs(question.model, question.workload)) {
  const Cluster& cluster = question.cluster;
  forward_tflops_ = best_of(cluster.attention, false, cluster.gpu.tflops_16);
  backward_tflops_ = best_of(cluster.attention, true, cluster.gpu.tflops_16);
  best_hbm_ = cluster.gpu.hbm_gbps;
}

double StepBound::product(std::int64_t m, std::int64_t k, std::int64_t n) const {
  if (m == 0 || k == 0 || n == 0) return 0;
  KernelWork work;
  work.flops = 2 * real(m) * real(k) * real(n);
  return kernels_.product_ns(work, question_.workload.dtype);
}

double StepBound::collective(CollectiveKind kind, double bytes, std::int64_t stride,
                             std::int64_t size) const {
  if (size == 1) return 0;
  std::vector<Rank> ranks;
  for (std::int64_t i = 0; i < size; ++i) ranks.push_back(static_cast<Rank>(i * stride));
  return collective_ns(kind, bytes, ranks, question_.cluster);
}

// Bytes a ns that one of `size` ranks, `stride` apart, receives from its neighbour where that is slowest.
double StepBound::best_rate(const ParallelLayout&, std::int64_t stride, std::int64_t size) const {
  const Cluster& cluster = question_.cluster;
  const bool leaves_node =
      stride * size > cluster.node.gpus && cluster.node.nvlink_domain <= cluster.node.gpus;
  const double nvlink = std::max(cluster.node.nvlink_gbps, cluster.node.pcie_gbps);
  return leaves_node ? std::min(cluster.network.nic_gbps, nvlink) : nvlink;
}

// Forward, at least: what must come before attention, or go home behind it.
double StepBound::transfers_ns(const ParallelLayout& layout, const LocalSizes& sizes) const {
  if (layout.cp == 1 || question_.workload.phase != Phase::training) return 0;
  const Strategy& strategy = layout.strategy;
  const double width = real(size_bytes(question_.workload.dtype));
  const double rate = std::max(question_.cluster.node.nvlink_gbps, question_.cluster.node.pcie_gbps);
  const double u = strategy.ulysses_degree;
  const double heads = width * real(sizes.tokens) * real(2 * sizes.q_width + 2 * sizes.kv_width);
  // Shorter by what a rank with fewer rows has less.
  return kSlack * 0.9 * heads * (u - 1) / u / rate;
}

StepBound::Attention StepBound::attention(const ParallelLayout& layout, const LocalSizes& sizes,
                                          bool whole_family) const {
  const Transformer& model = question_.model;
  const std::int64_t heads = model.q_heads / layout.tp;
  double pairs = pairs_ * real(layout.micro_batch) * real(heads) / layout.cp;
  if (!whole_family && layout.cp > 1) {
    const int ulysses = layout.strategy.ulysses_degree, ring = layout.cp / ulysses;
    const bool lower_triangle = question_.workload.phase == Phase::training &&
                                !(model.window && *model.window < question_.workload.seq_len);
    // The last of n equal parts sees (2n - 1) / n^2 of the triangle.
    const double share = lower_triangle && layout.strategy.balance.kind == Balance::Kind::contiguous
                             ? (2.0 * ring - 1) / ring / ring
                             : 1.0 / ring;
    pairs = pairs_ * real(layout.micro_batch) * share * real(ceil_div(heads, ulysses));
  }
  const double flops = kSlack * pairs * real(model.head_dim);
  Attention result;
  result.kernels = {4 * flops / forward_tflops_ * 1e-3, 10 * flops / backward_tflops_ * 1e-3};
  if (!whole_family) result.moved_ns = transfers_ns(layout, sizes);
  return result;
}

StepBound::Pass StepBound::layer(const ParallelLayout& layout, const LocalSizes& sizes,
                                 bool whole_family) const {
  const std::int64_t tokens = sizes.tokens, hidden = question_.model.hidden, columns = sizes.columns;
  const double width = real(size_bytes(question_.workload.dtype));
  const double qkv = product(tokens, hidden, sizes.q_width + 2 * sizes.kv_width);
  const double out = product(tokens, sizes.q_width, hidden);
  double up = 0, down = 0;
  if (sizes.experts > 0) {
    const std::int64_t rows = sizes.expert_tokens / sizes.experts;
    up = real(sizes.experts) * product(rows, hidden, 2 * columns),
    down = real(sizes.experts) * product(rows, columns, hidden);
  } else {
    up = product(tokens, hidden, 2 * columns), down = product(tokens, columns, hidden);
  }
  const double products = kSlack * (qkv + out + up + down);
  const std::int64_t mlp_tokens = sizes.experts > 0 ? sizes.expert_tokens : tokens;
  // Norms and the sums behind them, and the activation function: read and written once.
  const double rows_ns = memory(width * real(8 * sizes.tokens_tp * hidden + 3 * mlp_tokens * columns));
  const Attention attention_ns = attention(layout, sizes, whole_family);

  const std::int64_t stride = strides_of(layout).tp;
  const double gathered = width * real(sizes.tokens_tp) * layout.tp * real(hidden);
  const double regions = 2 * (collective(CollectiveKind::all_gather, gathered, stride, layout.tp) +
                              collective(CollectiveKind::reduce_scatter, gathered, stride, layout.tp));
  Pass pass;
  pass.forward_ns = products + rows_ns + attention_ns.forward_ns() + regions;
  const double work = 2 * products + attention_ns.kernels.backward_ns + rows_ns;
  const double chain = products + attention_ns.kernels.backward_ns + regions;
  double again = 0, share = 0;
  if (!whole_family && layout.recompute.kind != Recompute::Kind::none &&
      layout.recompute.kind != Recompute::Kind::selective) {
    again = products - kSlack * down + attention_ns.kernels.forward_ns;
    share = recomputed_share(layout, question_.model.layers);
  }
  pass.backward_ns = std::max(work, chain) + share * again;
  return pass;
}

StepBound::Pass StepBound::head(const ParallelLayout& layout, const LocalSizes& sizes) const {
  const bool training = question_.workload.phase == Phase::training;
  const std::int64_t tokens = training ? sizes.tokens / layout.loss_chunks : layout.micro_batch;
  const double ns =
      kSlack * real(training ? layout.loss_chunks : 1) * product(tokens, question_.model.hidden, sizes.vocab);
  return {ns, 2 * ns};
}

// Weights gathered once, or gradients scattered once.
double StepBound::sharding_ns(const ParallelLayout& layout, std::int64_t numel,
                              std::int64_t element_bytes) const {
  const int ranks = layout.sharding_size();
  if (ranks == 1) return 0;
  const Strides strides = strides_of(layout);
  const bool with_cp = layout.sharding == ShardingGroup::dp_shard_cp && layout.cp > 1;
  const std::int64_t stride =
      with_cp ? (layout.dp_shard > 1 ? std::min(strides.cp, strides.dp) : strides.cp) : strides.dp;
  const double bytes = real(numel * element_bytes) * (ranks - 1) / ranks;
  return kSlack * bytes / std::max(best_rate(layout, stride, ranks), 1e-9) * 0.5;
}

double StepBound::update_ns(const ParallelLayout& layout, const LocalSizes& sizes,
                            std::int64_t layers) const {
  const Workload& workload = question_.workload;
  const std::int64_t shard = layers * sizes.dense_layer / layout.sharding_size() +
                             layers * sizes.expert_layer / std::max(1, layout.sharding_size() / layout.ep);
  const std::int64_t state = workload.optimizer.states * size_bytes(workload.optimizer.state_dtype);
  const double bytes = real(shard) * real(8 + 2 * state + size_bytes(workload.gradient_dtype));
  return kSlack * memory(bytes);
}

double StepBound::step_ns(const ParallelLayout& layout, bool whole_family) const {
  const LocalSizes sizes = local_sizes(question_.model, question_.workload, layout);
  const Pass of_layer = layer(layout, sizes, whole_family), of_head = head(layout, sizes);
  const std::int64_t layers = question_.model.layers;
  if (question_.workload.phase != Phase::training)
    return real(layers) * of_layer.forward_ns + of_head.forward_ns;
  const std::int64_t times = accumulation(question_.workload, layout);
  const std::int64_t width = size_bytes(question_.workload.dtype);
  if (layout.pp == 1) {
    const double work = real(layers) * (of_layer.forward_ns + of_layer.backward_ns) + of_head.forward_ns +
                        of_head.backward_ns;
    const double gathers = 2 * sharding_ns(layout, layers * sizes.dense_layer, width);
    return real(times) * std::max(work, gathers) + update_ns(layout, sizes, layers);
  }
  std::vector<StageTimes> stages;
  for (const std::int64_t of_stage : stage_layers(question_.model, layout))
    stages.push_back({real(of_stage) * of_layer.forward_ns, real(of_stage) * of_layer.backward_ns, 0, 0});
  stages.back().forward_ns += of_head.forward_ns + of_head.backward_ns;
  return pipeline_bound_ns(stages, layout.pp, times) + update_ns(layout, sizes, layers / layout.pp);
}

}  // namespace cp::sim

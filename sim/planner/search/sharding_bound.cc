// What a step takes at least to gather weights, to scatter and add up gradients, and to update parameters.
#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "shared/base/index.h"
#include "sim/cost/timeline/host_cost.h"
#include "sim/planner/search/bound.h"
#include "sim/planner/search/bound_terms.h"

namespace cp::sim {

using namespace bound_terms;

Spread StepBound::spread_of_ranks(std::initializer_list<Ranks> groups) const {
  const std::int64_t gpus = question_.cluster.node.gpus;
  std::vector<std::int64_t> here{0};  // those on the first node
  std::int64_t all = 1;
  for (const Ranks& group : groups) {
    all *= group.size;
    const std::size_t before = here.size();
    for (std::int64_t i = 1; i < group.size && i * group.stride < gpus; ++i) {
      for (std::size_t known = 0; known < before; ++known) {
        if (here[known] + i * group.stride < gpus) here.push_back(here[known] + i * group.stride);
      }
    }
  }
  const auto on_a_node = static_cast<std::int64_t>(here.size());
  return {static_cast<int>(all), static_cast<int>(ceil_div(all, on_a_node)), static_cast<int>(on_a_node)};
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
  if (layout.sharding_size() == 1 || parameters == 0) return {};
  const Strides strides = strides_of(layout);
  const bool with_cp = layout.sharding == ShardingGroup::dp_shard_cp;
  return with_casts(
      layout, parameters,
      sharding(spread_of_ranks({{strides.dp, layout.dp_shard}, {strides.cp, with_cp ? layout.cp : 1}}),
               parameters));
}

// A bucket takes no longer than its layers would, one by one, and the last one, which may be smaller, not
// less than its layers' part of a full one: of more bytes each takes less.
StepBound::Sharding StepBound::sharding_in_bucket(const ParallelLayout& layout, std::int64_t parameters,
                                                  bool of_experts) const {
  const std::int64_t of_bucket = parameters * layout.bucket;
  Sharding sharding = of_experts ? sharding_of_experts(layout, of_bucket) : this->sharding(layout, of_bucket);
  for (double* ns :
       {&sharding.gather_ns, &sharding.scatter_ns, &sharding.port_gather_ns, &sharding.port_scatter_ns})
    *ns /= real(std::int64_t{layout.bucket});
  return sharding;
}

// Of each micro-batch: shards in f32 are cast before they are gathered, and gradients before they are
// scattered, on the same streams.
StepBound::Sharding StepBound::with_casts(const ParallelLayout& layout, std::int64_t parameters,
                                          Sharding sharding) const {
  sharding.gather_ns += cast_of_shard_ns(layout, parameters);
  sharding.scatter_ns += cast_of_gradients_ns(layout, parameters);
  return sharding;
}

double StepBound::cast_of_shard_ns(const ParallelLayout& layout, std::int64_t parameters) const {
  const Workload& workload = question_.workload;
  if (layout.keeps_whole_parameters() || workload.optimizer.offload || workload.dtype == DType::f32) return 0;
  const double width = real(size_bytes(workload.dtype) + size_bytes(DType::f32));
  return kSlack * kernels_.memory_ns(real(parameters) / layout.sharding_size() * width);
}

double StepBound::cast_of_gradients_ns(const ParallelLayout& layout, std::int64_t parameters) const {
  const Workload& workload = question_.workload;
  if (layout.keeps_whole_gradients() || workload.dtype == workload.gradient_dtype) return 0;
  const std::int64_t width = size_bytes(workload.dtype) + size_bytes(workload.gradient_dtype);
  return kSlack * kernels_.memory_ns(real(parameters) * real(width));
}

// A layer's gradients are complete with those of its first norm, and are cast before they are scattered. The
// next layer of the same parts writes to the same place: with norms behind, its first kernel does, and waits.
// (Elsewhere products come first that write no gradients of weights.)
double StepBound::casts_ns(const ParallelLayout& layout, const LocalSizes& sizes) const {
  const Transformer& model = question_.model;
  if (layout.sharding_size() == 1 || !model.norms_before || !model.norms_behind) return 0;
  if (layout.bucket > 1) return 0;     // only the last layer of a bucket is cast behind its own kernels
  if (layout.threshold > 0) return 0;  // gradients of norms lie elsewhere
  double sum_ns = 0;
  for (std::int64_t layer = 1; layer < model.layers; ++layer) {
    const LayerParts parts = model.parts_of(model.kinds[idx(model.kind_of(layer))]);
    if (parts == model.parts_of(model.kinds[idx(model.kind_of(layer - 1))]))
      sum_ns += cast_of_gradients_ns(layout, sizes.layer[parts] - sizes.small_layer[parts]);
  }
  return sum_ns;
}

StepBound::Sharding StepBound::sharding_of_experts(const ParallelLayout& layout,
                                                   std::int64_t parameters) const {
  if (layout.ep == 1) return sharding(layout, parameters);
  const int shards = layout.sharding_size() / layout.ep;
  if (shards <= 1 || parameters == 0) return {};
  const auto ranks = along_data(layout, layout.ep, shards);
  if (!ranks) return {};
  return with_casts(layout, parameters, sharding(spread_of_ranks({ranks->first, ranks->second}), parameters));
}

StepBound::Sharding StepBound::sharding(const Spread& spread, std::int64_t parameters) const {
  const std::array<std::int64_t, 4> key{spread.gpus, spread.nodes, spread.fewest_on_a_node, parameters};
  return shardings_.of(key, [&] { return made_sharding(spread, parameters); });
}

StepBound::Sharding StepBound::made_sharding(const Spread& spread, std::int64_t parameters) const {
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
    return spread_of_ranks({ranks->first, ranks->second});
  return {layout.ep, 1, layout.ep};  // on one node, where it is fastest
}

double StepBound::update_ns(const ParallelLayout& layout, const Shared& shared,
                            const ByParts<std::int64_t>& layers) const {
  const Workload& workload = question_.workload;
  const LocalSizes& sizes = shared.sizes;
  // The table of a model without stages is updated by the same rank; and a copy of it, where there is one.
  const bool has_table = layout.pp == 1 || question_.model.embeds_behind_layers();
  const std::int64_t ends = (has_table ? sizes.embedding : 0) + sizes.head + sizes.final_norm +
                            question_.model.prediction_layers * sizes.prediction;
  std::int64_t dense = ends;
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
  Sharding once = sharding(layout, ends);
  if (!layout.keeps_whole_gradients()) once.scatter_ns = 0;
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
  return summed_ns({{strides.replicas, layout.dp_replicate}, {strides.cp, beside}}, shard);
}

double StepBound::replicas_of_experts_ns(const ParallelLayout& layout, std::int64_t shard) const {
  if (layout.ep == 1) return replicas_ns(layout, shard);
  const std::int64_t shards = std::max(1, layout.sharding_size() / layout.ep),
                     copies = layout.dp_shard * layout.cp / layout.ep / shards;
  const Ranks replicas{strides_of(layout).replicas, layout.dp_replicate};
  if (copies == 1) return summed_ns({replicas}, shard);
  const auto of_copies = along_data(layout, layout.ep * shards, copies);
  return of_copies ? summed_ns({replicas, of_copies->first, of_copies->second}, shard) : 0;
}

double StepBound::summed_ns(std::initializer_list<Ranks> groups, std::int64_t shard) const {
  const Spread spread = spread_of_ranks(groups);
  if (spread.gpus == 1 || shard == 0) return 0;
  const double bytes = real(shard) * real(size_bytes(question_.workload.gradient_dtype));
  return kSlack * collective_ns(CollectiveKind::all_reduce, bytes, spread, question_.cluster);
}

}  // namespace cp::sim

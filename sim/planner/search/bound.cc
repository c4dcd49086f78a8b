#include "sim/planner/search/bound.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "shared/transformer/flops.h"
#include "sim/cost/schedule/pipeline.h"
#include "sim/planner/search/bound_terms.h"

namespace cp::sim {

using namespace bound_terms;

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
#include "sim/planner/search/bound.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "shared/base/index.h"
#include "shared/plan/operations.h"
#include "shared/transformer/flops.h"
#include "shared/transformer/group_axis.h"
#include "shared/transformer/layer_plan.h"
#include "shared/transformer/mixers/mixer.h"
#include "shared/transformer/pipeline.h"
#include "sim/cost/timeline/collective_cost.h"
#include "sim/planner/search/bound_terms.h"

namespace cp::sim {

using namespace bound_terms;

namespace {

// What a mixer looks at is its own business: layers that differ in that alone do the same beside it.
Transformer with_one_layer(const Transformer& model, LayerKind kind) {
  Transformer alone = model;
  kind.window.reset(), kind.chunk.reset();
  set_layers(alone, {kind});
  alone.layers = 1, alone.prediction_layers = 0;
  forget_unused_mixers(alone);
  return alone;
}

}  // namespace

StepBound::StepBound(const PlanQuestion& question)
    : question_(question),
      kernels_(question_.cluster, question_.software),
      layers_of_kinds_(layers_of_kinds(question.model)),
      layers_of_parts_(layers_of_parts(question.model, layers_of_kinds_)),
      collectives_(settings_of({}, question.software)) {
  for (const LayerKind& kind : question.model.kinds) {
    pairs_.push_back(allowed_pairs(question.model, question.workload, kind));
    alone_.push_back(with_one_layer(question.model, kind));
    const auto alike = std::find(alone_.begin(), alone_.end(), alone_.back());
    first_alike_.push_back(idx(alike - alone_.begin()));
  }
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
// Balances that deal rows by their number give each rank as many where cp divides these; of stripes, where
// they make as many in each half. Else a ring's blocks of two parts differ by 2 rows, and what a Ulysses
// group makes of one by another row: no rank has less than the mean but for 3 rows; or of a striped balance a
// block. Members of a family are striped in blocks of one row, unless the question fixes others, and layers
// may yet get a home of the other balance.
std::int64_t StepBound::least_tokens(const ParallelLayout& layout, bool whole_family) const {
  const Workload& workload = question_.workload;
  if (workload.phase != Phase::training) return local_sizes(question_.model, workload, layout).tokens;
  const Balance& balance = layout.strategy.balance;
  const std::int64_t mean = workload.seq_len / layout.cp;
  std::int64_t rows = mean;
  bool all_alike = true;
  if (layout.cp > 1) {
    const std::vector<LayerKind>& kinds = question_.model.kinds;
    const auto of_attention =
        idx(std::find(kinds.begin(), kinds.end(), first_attention(question_.model)) - kinds.begin());
    const Balance fixed = question_.fixed.balance.value_or(Balance{}),
                  &dealt = whole_family ? fixed : balance;
    const std::int64_t block = dealt.kind == Balance::Kind::striped ? dealt.block : 1,
                       parts = (block == 1 ? 1 : std::lcm<std::int64_t>(2, block)) * layout.cp;
    all_alike = workload.seq_len % parts == 0;
    if (!all_alike) rows = mean - std::max<std::int64_t>(3, block);
    if (dealt.kind == Balance::Kind::cost || dealt.per_document)
      rows = whole_family ? 1 : block_rows(layout, of_attention).least_at_home, all_alike = false;
  }
  const std::int64_t tokens = std::max<std::int64_t>(1, rows) * layout.micro_batch,
                     ranks = layout.row_ranks();
  // The rank that stands for all has as many. Fewer need not take less time: as many rows as five tokens send
  // to four experts fill three of them, two rows each, and those of four tokens fill four.
  if (all_alike && !whole_family) return tokens;
  return tokens < ranks ? tokens : tokens / ranks * ranks;
}

StepBound::Shared StepBound::shared(const ParallelLayout& layout, bool whole_family) const {
  Shared shared;
  shared.sizes = local_sizes(question_.model, question_.workload, layout);
  shared.tokens = least_tokens(layout, whole_family);
  const LocalSizes& sizes = shared.sizes;
  if (question_.workload.phase != Phase::training) return shared;
  for (const LayerParts parts : kLayerParts) {
    if (layers_of_parts_[parts] == 0) continue;
    shared.shards[parts] = sharding_in_bucket(layout, sizes.layer[parts] - sizes.small_layer[parts], false);
    if (parts.mlp != Mlp::experts) continue;
    shared.expert_shards = sharding_in_bucket(layout, sizes.expert_layer - sizes.small_experts, true);
    shared.shards[parts] += shared.expert_shards;
  }
  shared.table = sharding(layout, sizes.embedding - sizes.small_embedding);
  shared.head_shards = sharding(layout, sizes.head + sizes.final_norm - sizes.small_head);
  const Transformer& model = question_.model;
  const LayerParts last = model.parts_of(model.kinds[idx(model.last_kind())]);
  if (model.prediction_layers > 0) {
    // Each depth gathers its layer and what is its own forward and backward, and reduces both. A tied table
    // is gathered and reduced with the model's own use of it.
    const std::int64_t times = model.prediction_layers;
    shared.predictions = shared.shards[last].times(2 * times, times);
    shared.predictions += sharding(layout, sizes.prediction - sizes.small_prediction).times(2 * times, times);
    if (!model.tied_embeddings) {
      shared.predictions += shared.table.times(times, times);
      shared.predictions += shared.head_shards.times(times, times);
    }
  }
  if (layout.pp == 1) shared.ends = ends(layout, shared), shared.casts_ns = casts_ns(layout, sizes);
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
  of_rank[last] += model.prediction_layers;
  if (layout.pp > 1) {
    const double rows = real(size_bytes(question_.workload.dtype)) *
                        real(shared.tokens / layout.row_ranks() * question_.model.hidden);
    shared.send_ns = kSlack * hop_ns(rows, {strides_of(layout).pp, 2});
  }
  shared.update_ns = update_ns(layout, shared, of_rank);
  return shared;
}

StepBound::Shared StepBound::with_update(Shared shared, double update_ns) {
  shared.update_ns = std::max(shared.update_ns, kSlack * update_ns);
  return shared;
}

double StepBound::transfer_ns(const ParallelLayout& layout, const Collective& transfer,
                              const Plan& plan) const {
  const GroupAxis axis = axis_of_group(plan.groups[idx(group_of(transfer))].name);
  if (axis != GroupAxis::tp && axis != GroupAxis::ep) return 0;
  const Spread spread =
      axis == GroupAxis::tp ? spread_of({strides_of(layout).tp, layout.tp}) : spread_of_ep(layout);
  return collective_ns(transfer, plan, spread, question_.cluster, collectives_);
}

// Rows are those of as many sequences of one token, as made_reading() has them.
double StepBound::end_ns(const ParallelLayout& layout, std::int64_t tokens, EndPart part) const {
  const bool training = question_.workload.phase == Phase::training;
  const EndKey key{
      part,
      {layout.tp, layout.row_ranks(), layout.tp > 1 ? static_cast<int>(strides_of(layout).tp) : 1,
       part == EndPart::head && training ? layout.loss_chunks : 1},
      training ? tokens : layout.micro_batch};
  const LayerReading& reading = ends_.of(key, [&] {
    StepRequest request{alone_.front(), question_.workload, {}};
    request.model.prediction_layers = part == EndPart::prediction ? 1 : 0;
    ParallelLayout& alone = request.layout;
    alone.tp = layout.tp, alone.sequence_parallel = layout.sequence_parallel;
    alone.loss_chunks = layout.loss_chunks, alone.micro_batch = std::get<2>(key);
    one_token_each(request);
    return read_layer(end_plan(request, part), kernels_, [&](const Collective& transfer, const Plan& plan) {
      return transfer_ns(layout, transfer, plan);
    });
  });
  return kSlack * reading.whole.ns;
}

double StepBound::head_ns(const ParallelLayout& layout, const Shared& shared, bool whole_family) const {
  if (!whole_family) return end_ns(layout, shared.tokens, EndPart::head);
  // In chunks of any size: a product, and backward two. The constructor looks for best_product_ at sizes 5 %
  // apart, so that a size in between may be a little faster.
  const bool training = question_.workload.phase == Phase::training;
  const std::int64_t rows = training ? shared.tokens : layout.micro_batch;
  return kSlack * 0.98 * (training ? 3 : 1) * 2 * real(rows) * real(question_.model.hidden) *
         real(shared.sizes.vocab) / best_product_;
}

// The embedding's table is gathered, its rows are looked up and scattered over the tensor-parallel ranks.
// Weights are gathered in the order of their use, so those of the first layer come behind the table. Backward
// the first layer's gradients are complete with its first norm's, and are scattered while the table gets its
// own, which are scattered behind them.
StepBound::Ends StepBound::ends(const ParallelLayout& layout, const Shared& shared) const {
  const Transformer& model = question_.model;
  const LocalSizes& sizes = shared.sizes;
  const LayerParts first = model.parts_of(model.kinds[idx(model.kind_of(0))]);
  const double looked_up_ns = end_ns(layout, shared.tokens, EndPart::embedding);
  Ends ends{looked_up_ns, 0};
  if (layout.sharding_size() == 1) return ends;
  // With a threshold norms are on every rank, and what is gathered of a layer is needed behind its first one.
  if (layout.threshold > 0) {
    if (!layout.keeps_whole_parameters()) ends.before_ns = shared.table.gather_ns + looked_up_ns;
    if (!layout.keeps_whole_gradients()) ends.behind_ns = shared.table.scatter_ns;
    return ends;
  }
  if (!layout.keeps_whole_parameters()) {
    const double of_first = sharding(layout, sizes.layer[first] - sizes.small_layer[first]).gather_ns;
    ends.before_ns = shared.table.gather_ns + std::max(of_first, looked_up_ns);
  }
  if (!layout.keeps_whole_gradients())
    ends.behind_ns = shared.table.scatter_ns + (model.norms_before ? shared.shards[first].scatter_ns : 0);
  // Where the first layer has experts, their products come behind all that the layer does before them.
  if (first.mlp == Mlp::experts && !layout.keeps_whole_parameters()) {
    const LayerReading& forward = read(layout, shared, idx(model.kind_of(0)), Read::forward);
    ends.experts_ns =
        shared.table.gather_ns + shared.shards[first].gather_ns + kSlack * forward.from_experts->ns;
  }
  return ends;
}

double StepBound::step_ns(const ParallelLayout& layout, const Shared& shared, Of of,
                          const AttentionTimes* replayed, double most_ns) const {
  const bool whole_family = of == Of::family;
  const std::vector<Pass> of_kinds = this->layers(layout, shared, whole_family, replayed);
  const Pass of_layers = sum_of(of_kinds, layers_of_kinds_);
  const double head_ns = this->head_ns(layout, shared, whole_family);
  if (question_.workload.phase != Phase::training) return of_layers.forward_ns + head_ns;
  const std::int64_t times = accumulation(question_.workload, layout);
  const double of_predictions = predictions_ns(layout, shared, head_ns, whole_family, replayed);
  if (layout.pp == 1)
    return real(times) * micro_batch_ns(layout, shared, of_kinds, head_ns, of_predictions, of, replayed) +
           shared.update_ns;
  const PipelineBound pipeline = this->pipeline(layout, shared, of_kinds, head_ns, of_predictions, replayed);
  const double ns = pipeline_bound_ns(pipeline.stages, layout.pp, times) + pipeline.update_ns;
  if (replayed == nullptr || ns > most_ns || !is_quick(pipeline.stages.size(), times)) return ns;
  // Passes have a fixed order on each rank, so the schedule of passes that take less ends no later.
  return pipeline_ns(pipeline.stages, layout.pp, times, most_ns - pipeline.update_ns) + pipeline.update_ns;
}

double StepBound::micro_batch_ns(const ParallelLayout& layout, const Shared& shared,
                                 const std::vector<Pass>& of_kinds, double head_ns, double predictions_ns,
                                 Of of, const AttentionTimes* replayed) const {
  const Transformer& model = question_.model;
  Pass of_layers = sum_of(of_kinds, layers_of_kinds_);
  const Pass moved = moves(layout, 0, replayed);
  of_layers.forward_ns += moved.forward_ns, of_layers.backward_ns += moved.backward_ns;
  const auto [before_ns, experts_ns, behind_ns] = shared.ends;
  const auto kind_of = [&](std::int64_t layer) { return idx(model.kind_of(layer)); };
  double forward = of_layers.forward_ns + std::max(before_ns, experts_ns - of_kinds[kind_of(0)].forward_ns),
         backward = of_layers.backward_ns + behind_ns, gathered_twice = 0;
  // Where a layer is computed again first, the cast is over by then.
  const Recompute::Kind recompute = layout.recompute.kind;
  if (of != Of::family && (recompute == Recompute::Kind::none || recompute == Recompute::Kind::selective))
    backward += shared.casts_ns;
  Sharding all, late;
  for (const LayerParts parts : kLayerParts) {
    const std::int64_t layers = layers_of_parts_[parts];
    all += shared.shards[parts].times(layers, layers);
    // As many of the last layers as there are slots may be gathered for the backward pass before it begins.
    late += shared.shards[parts].times(layers - std::int64_t{layout.prefetch + 1} * layout.bucket, layers);
  }
  if (!layout.keeps_whole_parameters()) {
    // One stream gathers the table, then layer by layer, and what comes last is computed with behind that.
    const std::size_t last = kind_of(model.layers - 1);
    const LayerParts parts = model.parts_of(model.kinds[last]);
    const double behind_last = layout.threshold > 0 ? 0
                               : parts.mlp == Mlp::experts
                                   ? kSlack * read(layout, shared, last, Read::forward).from_experts->ns
                                   : of_kinds[last].forward_ns;
    forward = std::max(forward, shared.table.gather_ns + all.gather_ns + behind_last);
    // What is kept of a layer comes from fewer ranks, or from none: nothing is claimed of it.
    const int gathers = layout.reshard == 0 ? 2 : 1;
    gathered_twice = shared.table.gather_ns + shared.head_shards.gather_ns + gathers * all.gather_ns +
                     shared.predictions.gather_ns + behind_ns;
  }
  if (layout.keeps_whole_parameters() || layout.reshard != 0) late.gather_ns = late.port_gather_ns = 0;
  if (!layout.keeps_whole_gradients()) {
    // What is scattered has a stream of its own, which the head's gradients come to first.
    backward = std::max(backward, shared.head_shards.scatter_ns + all.scatter_ns + shared.table.scatter_ns);
  } else {
    late.scatter_ns = late.port_scatter_ns = 0;
  }
  // All of these begin behind the head: with a slot that the backward pass frees, or with gradients of it.
  backward = std::max(backward, late.ns());
  const double ns = std::max(forward + predictions_ns + head_ns + backward, gathered_twice);
  if (of != Of::member && replayed == nullptr) return ns;
  return std::max(ns, sharded_ns(layout, shared, of_kinds, head_ns, replayed));
}

// Each depth's passes follow those of the layers before it, forward and then backward, and what is gathered
// and scattered of weights meanwhile is not claimed. Of every k-th layer, which is computed again, it is
// none.
double StepBound::predictions_ns(const ParallelLayout& layout, const Shared& shared, double head_ns,
                                 bool whole_family, const AttentionTimes* replayed) const {
  const Transformer& model = question_.model;
  if (model.prediction_layers == 0) return 0;
  ParallelLayout alone = layout;
  if (alone.recompute.kind == Recompute::Kind::every) alone.recompute = {};
  const Pass of_layer = layers(alone, shared, whole_family, replayed)[idx(model.last_kind())];
  return real(model.prediction_layers) * (end_ns(layout, shared.tokens, EndPart::prediction) +
                                          of_layer.forward_ns + head_ns + of_layer.backward_ns);
}

PipelineBound StepBound::pipeline(const ParallelLayout& layout, const AttentionTimes& attention,
                                  double update_ns) const {
  const Shared shared = with_update(this->shared(layout), update_ns);
  const double head_ns = this->head_ns(layout, shared, false);
  return pipeline(layout, shared, layers(layout, shared, false, &attention), head_ns,
                  predictions_ns(layout, shared, head_ns, false, &attention), &attention);
}

PipelineBound StepBound::pipeline(const ParallelLayout& layout, const Shared& shared,
                                  const std::vector<Pass>& of_kinds, double head_ns, double predictions_ns,
                                  const AttentionTimes* replayed) const {
  PipelineBound pipeline;
  pipeline.stages.reserve(shared.stages.size());
  for (const std::vector<std::int64_t>& of_stage : shared.stages) {
    Pass sum = sum_of(of_kinds, of_stage);
    // While a stage waits for gradients, its last layer may be computed again, transfers and all.
    double meanwhile_ns = 0;
    for (std::size_t kind = 0; kind < of_stage.size(); ++kind) {
      if (of_stage[kind] > 0) meanwhile_ns = std::max(meanwhile_ns, of_kinds[kind].again_moved_ns);
    }
    sum.backward_ns -= meanwhile_ns;
    const Pass moved = moves(layout, static_cast<int>(pipeline.stages.size()), replayed);
    sum.forward_ns += moved.forward_ns, sum.backward_ns += moved.backward_ns;
    pipeline.stages.push_back({sum.forward_ns, sum.backward_ns, shared.send_ns, shared.send_ns});
  }
  pipeline.stages.back().forward_ns += predictions_ns + head_ns;
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

// Between the layers of a stage nothing hides them: the next kernel needs the rows. Backward that is so where
// the layer begins with a gradient, and computes nothing again meanwhile. What goes from stage to stage may
// be on its way beside the work of another micro-batch, and of layouts without replayed times nothing is
// claimed.
StepBound::Pass StepBound::moves(const ParallelLayout& layout, int stage,
                                 const AttentionTimes* replayed) const {
  Pass moved;
  if (replayed == nullptr || (!layout.window_balance && !layout.scan_balance)) return moved;
  const std::vector<int> homes = homes_of_stage(question_.model, question_.workload, layout, stage);
  const bool hides = layout.recompute.kind != Recompute::Kind::none || layout.mlp_chunks > 1;
  for (std::size_t layer = 0; layer + 2 < homes.size(); ++layer) {
    if (homes[layer] == homes[layer + 1]) continue;
    moved.forward_ns += kSlack * replayed->move_ns[idx(homes[layer])];
    if (!hides) moved.backward_ns += kSlack * replayed->move_ns[idx(homes[layer + 1])];
  }
  return moved;
}

double FamilyBound::ns(const ParallelLayout& member) {
  const PlanQuestion& question = bound_.question_;
  const LocalSizes sizes = local_sizes(question.model, question.workload, member);
  if (!shared_ || sizes.tokens != shared_->sizes.tokens || sizes.mlp_tokens != shared_->sizes.mlp_tokens ||
      bound_.least_tokens(member, false) != shared_->tokens)
    shared_ = StepBound::with_update(bound_.shared(member), update_ns_);
  return bound_.step_ns(member, *shared_, StepBound::Of::member, nullptr);
}

}  // namespace cp::sim
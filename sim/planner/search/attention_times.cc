#include "sim/planner/search/attention_times.h"

#include <algorithm>
#include <vector>

#include "shared/base/index.h"
#include "shared/transformer/rank_groups.h"
#include "sim/cost/timeline/rank_replay.h"

namespace cp::sim {

AttentionKey attention_key(const ParallelLayout& layout, const Cluster& cluster) {
  int stride = 1;
  const std::vector<MeshAxis> axes = mesh_axes(layout);
  for (auto axis = axes.rbegin(); axis->name != "cp"; ++axis) stride *= axis->size;
  // Names for all fields: one that a strategy gets later does not compile until the key has it.
  const auto& [core, ulysses_degree, ulysses_inner, inner_ring, rotation, balance, input_dtype_gradients,
               input_dtype_merge, send_empty, slots, pieces, transfers, merges] = layout.strategy;
  const auto& [kind, block, per_document] = balance;
  return {.micro_batch = layout.micro_batch,
          .tp = layout.tp,
          .cp = layout.cp,
          .ranks_apart = std::min(stride, std::max(cluster.node.gpus, cluster.node.nvlink_domain)),
          .core = core,
          .ulysses_degree = ulysses_degree,
          .inner_ring = inner_ring,
          .balance = kind,
          .block = block,
          .rotation = rotation,
          .ulysses_inner = ulysses_inner,
          .send_empty = send_empty,
          .per_document = per_document,
          .input_dtype_gradients = input_dtype_gradients,
          .input_dtype_merge = input_dtype_merge,
          .slots = slots,
          .pieces = pieces,
          .transfers = transfers,
          .merges = merges};
}

AttentionTimes::Pass AttentionTimer::replayed(const ParallelLayout& layout, AttentionPass pass, Rank self,
                                              const AttentionProblem& problem) const {
  AttentionRequest attention;
  attention.problem = problem;
  attention.ranks = RankGroups(layout, self).cp_group();
  if (layout.cp > 1) attention.strategy = layout.strategy;
  attention.keep_for_backward = question_.workload.phase == Phase::training;
  attention.options.lse = LsePlace::computed;
  const StepClock clock = replay_rank(attention_plan(attention, pass, self), question_.cluster, software_);
  AttentionTimes::Pass times{clock.time_ns - clock.exposed_ns(), clock.exposed_ns(), 0};
  for (const StepClock::Exposed& exposed : clock.exposed) {
    if (exposed.group == "ring") times.ring_ns += exposed.ns;
  }
  return times;
}

const AttentionTimes& AttentionTimer::of(const ParallelLayout& layout) {
  const AttentionKey key = attention_key(layout, question_.cluster);
  {
    const std::scoped_lock lock(mutex_);
    if (const auto found = known_.find(key); found != known_.end()) return found->second;
  }
  const Transformer& model = question_.model;
  const Rank self = busiest_rank({model, question_.workload, layout}, 0);
  const std::vector<std::int64_t> layers = layers_of_kinds(model);
  std::vector<AttentionProblem> problems;
  AttentionTimes times;
  for (std::size_t kind = 0; kind < layers.size(); ++kind) {
    const AttentionProblem& problem =
        problems.emplace_back(attention_problem(model, question_.workload, layout, model.kinds[kind]));
    // Kinds that differ in their MLP alone have the same attention.
    const auto same = std::find(problems.begin(), problems.end(), problem) - problems.begin();
    AttentionTimes::Passes of_kind;
    if (same < static_cast<std::ptrdiff_t>(kind)) {
      of_kind = times.of_kinds[idx(same)];
    } else {
      of_kind.forward = replayed(layout, AttentionPass::forward, self, problem);
      if (question_.workload.phase == Phase::training)
        of_kind.backward = replayed(layout, AttentionPass::backward, self, problem);
    }
    times.of_kinds.push_back(of_kind);
    const double share = static_cast<double>(layers[kind]) / static_cast<double>(model.layers);
    const auto add = [&](AttentionTimes::Pass& mean, const AttentionTimes::Pass& of) {
      mean.kernels_ns += share * of.kernels_ns, mean.exposed_ns += share * of.exposed_ns;
      mean.ring_ns += share * of.ring_ns;
    };
    add(times.mean.forward, of_kind.forward), add(times.mean.backward, of_kind.backward);
  }
  const std::scoped_lock lock(mutex_);
  return known_.try_emplace(key, times).first->second;
}

}  // namespace cp::sim

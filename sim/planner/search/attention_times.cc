#include "sim/planner/search/attention_times.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "shared/base/index.h"
#include "shared/recurrence/recurrence_plan.h"
#include "shared/transformer/rank_groups.h"
#include "sim/cost/timeline/rank_replay.h"

namespace cp::sim {

AttentionKey attention_key(const ParallelLayout& layout, const Cluster& cluster) {
  int stride = 1;
  const std::vector<MeshAxis> axes = mesh_axes(layout);
  for (auto axis = axes.rbegin(); axis->name != "cp"; ++axis) stride *= axis->size;
  // Names for all fields: one that a strategy gets later does not compile until the key has it.
  const auto& [core, ulysses_degree, ulysses_inner, inner_ring, rotation, balance, input_dtype_gradients,
               input_dtype_merge, send_empty, slots, pieces, transfers, merges, keys] = layout.strategy;
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
          .merges = merges,
          .keys = keys,
          .scan = layout.scan,
          .window_core = layout.window_core};
}

AttentionTimes::Pass AttentionTimer::replayed(const Plan& plan) const {
  const StepClock clock = replay_rank(plan, question_.cluster, software_);
  AttentionTimes::Pass times{clock.time_ns - clock.exposed_ns(), clock.exposed_ns(), 0};
  for (const StepClock::Exposed& exposed : clock.exposed) {
    if (exposed.group == "ring") times.ring_ns += exposed.ns;
  }
  return times;
}

AttentionTimes::Passes AttentionTimer::attention(const ParallelLayout& layout, Rank self,
                                                 const AttentionProblem& problem) const {
  const bool training = question_.workload.phase == Phase::training;
  AttentionRequest attention;
  attention.problem = problem;
  attention.ranks = RankGroups(layout, self).cp_group();
  if (layout.cp > 1) attention.strategy = strategy_of(layout, problem);
  attention.keep_for_backward = training;
  attention.options.lse = LsePlace::computed;
  return {
      replayed(attention_plan(attention, AttentionPass::forward, self)),
      training ? replayed(attention_plan(attention, AttentionPass::backward, self)) : AttentionTimes::Pass{}};
}

AttentionTimes::Passes AttentionTimer::recurrence(const ParallelLayout& layout, Rank self) {
  // All that the rows' places do not depend on is left out.
  AttentionKey key = attention_key(layout, question_.cluster);
  key.core = {}, key.rotation = {}, key.merges = {}, key.transfers = {}, key.window_core = {};
  key.inner_ring = key.slots = key.pieces = 1;
  {
    const std::scoped_lock lock(mutex_);
    if (const auto found = recurrences_.find(key); found != recurrences_.end()) return found->second;
  }
  const RecurrenceRequest request{recurrence_problem(question_.model, question_.workload, layout),
                                  RankGroups(layout, self).cp_group(), recurrence_strategy(layout), true};
  const AttentionTimes::Passes passes{
      replayed(recurrence_plan(request, RecurrencePass::forward, self, shape_target())),
      replayed(recurrence_plan(request, RecurrencePass::backward, self, shape_target()))};
  const std::scoped_lock lock(mutex_);
  return recurrences_.try_emplace(key, passes).first->second;
}

StateScan AttentionTimer::best_scan(const ParallelLayout& layout, const Fits& fits) {
  if (!question_.model.recurrence || question_.fixed.scan || layout.cp == 1) return layout.scan;
  const Rank self = busiest_rank({question_.model, question_.workload, layout}, 0);
  ParallelLayout tried = layout;
  StateScan best = layout.scan;
  double least_ns = std::numeric_limits<double>::infinity();
  for (const StateScan scan : state_scans()) {
    tried.scan = scan;
    if (refuse(recurrence_problem(question_.model, question_.workload, tried), tried.cp,
               recurrence_strategy(tried), shape_target()) ||
        !fits(tried)) {
      continue;
    }
    const auto [forward, backward] = recurrence(tried, self);
    const double ns = forward.kernels_ns + forward.exposed_ns + backward.kernels_ns + backward.exposed_ns;
    if (ns < least_ns) least_ns = ns, best = scan;
  }
  return best;
}

std::optional<Core> AttentionTimer::best_window_core(const ParallelLayout& layout, const Fits& fits) {
  ParallelLayout tried = layout;
  tried.window_core = Core::need_only;
  if (question_.fixed.window_core || layout.window_core || layout.cp == 1 ||
      refuse(question_.model, question_.workload, tried) || !fits(tried))
    return layout.window_core;
  const auto ns = [&](const ParallelLayout& of) {
    const auto& [forward, backward] = this->of(of).mean;
    return forward.kernels_ns + forward.exposed_ns + backward.kernels_ns + backward.exposed_ns;
  };
  return ns(tried) < ns(layout) ? tried.window_core : std::nullopt;
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
  std::vector<std::pair<AttentionProblem, std::size_t>> problems;  // with the kind that has it first
  AttentionTimes times;
  for (std::size_t kind = 0; kind < layers.size(); ++kind) {
    AttentionTimes::Passes of_kind;
    if (model.kinds[kind].mixer == Mixer::recurrence) of_kind = recurrence(layout, self);
    if (model.kinds[kind].mixer == Mixer::attention) {
      // Kinds that differ in their MLP alone have the same attention.
      const AttentionProblem problem =
          attention_problem(model, question_.workload, layout, model.kinds[kind]);
      const auto same = std::find_if(problems.begin(), problems.end(),
                                     [&](const auto& known) { return known.first == problem; });
      of_kind = same == problems.end() ? attention(layout, self, problem) : times.of_kinds[same->second];
      if (same == problems.end()) problems.emplace_back(problem, kind);
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

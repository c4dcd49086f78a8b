#include "sim/planner/search/attention_times.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "shared/base/index.h"
#include "shared/context_parallel/cores.h"
#include "shared/recurrence/recurrence_plan.h"
#include "shared/transformer/layout_axes.h"
#include "shared/transformer/rank_groups.h"
#include "sim/cost/timeline/rank_replay.h"
#include "sim/planner/search/ranking.h"

namespace cp::sim {

AttentionKey attention_key(const ParallelLayout& layout, const Cluster& cluster) {
  int stride = 1;
  for (const LayoutAxis axis : axes_of(layout.order)) {
    if (axis == LayoutAxis::cp) break;
    stride *= size_of(layout, axis);
  }
  // Names for all fields: one that a strategy gets later does not compile until the key has it.
  const auto& [core, ulysses_degree, ulysses_inner, inner_ring, rotation, balance, input_dtype_gradients,
               input_dtype_merge, send_empty, slots, pieces, transfers, merges, keys_of_attention] =
      layout.strategy;
  const auto& [kind, block, per_document] = balance;
  const auto kind_of = [](const std::optional<Balance>& own) {
    return own ? std::optional(own->kind) : std::nullopt;
  };
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
          .keys = layout.keys == Strategy::Keys::heads ? keys_of_attention : layout.keys,
          .scan = layout.scan,
          .window_core = layout.window_core,
          .window_balance = kind_of(layout.window_balance),
          .scan_balance = kind_of(layout.scan_balance)};
}

double forward_passes(const Recompute& recompute) {
  switch (recompute.kind) {
    case Recompute::Kind::full:
      return 2;
    case Recompute::Kind::every:
      return 1 + 1.0 / recompute.every;
    case Recompute::Kind::none:
    case Recompute::Kind::selective:
      return 1;
  }
  return 1;
}

bool is_least_alone(const PlanQuestion& question, const ParallelLayout& layout, const LayerKind& kind) {
  if (kind.mixer != Mixer::attention) return true;
  const AttentionProblem problem = attention_problem(question.model, question.workload, layout, kind);
  // A window leaves so little to compute on the own block that what comes first is waited for; in a step it
  // may come while queries are still made.
  if (problem.is_cut()) return false;
  return facts(strategy_of(layout, problem).core).is_least_alone;
}

namespace {

// Whether an exchange brings something to the rank, and takes nothing from it.
bool only_receives(const Plan& plan) {
  const std::vector<StepRef> steps = steps_of(plan);
  return std::any_of(steps.begin(), steps.end(), [](const StepRef& ref) {
    const auto* collective = std::get_if<Collective>(&ref.step->work);
    const auto* exchange = collective != nullptr ? std::get_if<Exchange>(collective) : nullptr;
    return exchange != nullptr && exchange->sends.empty() && !exchange->recvs.empty();
  });
}

// All that the rows' places do not depend on is left out.
AttentionKey key_of_places(const ParallelLayout& layout, const Cluster& cluster) {
  AttentionKey key = attention_key(layout, cluster);
  key.core = {}, key.rotation = {}, key.merges = {}, key.transfers = {}, key.window_core = {}, key.keys = {};
  key.inner_ring = key.slots = key.pieces = 1, key.scan = {};
  return key;
}

// The index of the rank that stands for a stage in its cp group.
int busiest_index(const StepRequest& request, int stage) {
  const Rank self = busiest_rank(request, stage);
  const std::vector<Rank> ranks = RankGroups(request.layout, self).cp_group();
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), self) - ranks.begin());
}

}  // namespace

AttentionTimes::Pass AttentionTimer::replayed(const Plan& plan) const {
  const StepClock clock = replay_rank(plan, question_.cluster, software_);
  AttentionTimes::Pass times{clock.time_ns - clock.exposed_ns(), clock.exposed_ns(), 0, behind_ns(plan),
                             only_receives(plan)};
  for (const StepClock::Exposed& exposed : clock.exposed) {
    if (exposed.group == "ring") times.ring_ns += exposed.ns;
  }
  return times;
}

// Whatever a step does meanwhile, its next kernel waits for the last one of this plan, and that for what the
// last kernel of attention gave. So the steps between, alone, take no less within a step, and nothing hides
// their transfers: kernels run in order. Where some run on another stream, nothing is claimed.
double AttentionTimer::behind_ns(const Plan& plan) const {
  const std::vector<StepRef> steps = steps_of(plan);
  std::size_t first = steps.size(), last = 0;  // that kernel, and the last one of all
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const auto* kernel = std::get_if<Kernel>(&steps[i].step->work);
    if (kernel == nullptr) continue;
    last = i;
    if (std::holds_alternative<AttentionBackward>(*kernel)) first = i;
  }
  if (first >= last) return 0;
  const StreamId compute = steps[first].step->stream;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const bool of_kernel = !is_collective(*steps[i].step);
    const bool repeats = std::holds_alternative<Repeat>(plan.segments[idx(steps[i].segment)]);
    if ((of_kernel && steps[i].step->stream != compute) || (i >= first && repeats)) return 0;
  }
  // Which steps wait for the first, and for which the last one waits; also by the order of their streams.
  std::vector<std::uint8_t> waits(steps.size(), 0), needed(steps.size(), 0);
  std::vector<std::uint8_t> stream_waits(plan.streams.size(), 0), stream_needed(plan.streams.size(), 0);
  stream_waits[idx(compute)] = stream_needed[idx(compute)] = 1;
  waits[first] = 1;
  for (std::size_t i = first + 1; i <= last; ++i) {
    const Step& step = *steps[i].step;
    std::uint8_t& of_stream = stream_waits[idx(step.stream)];
    for (const Edge& edge : step.after) of_stream |= waits[idx(edge.step)];
    waits[i] = of_stream;
  }
  for (std::size_t i = last; i > first; --i) {
    const Step& step = *steps[i].step;
    needed[i] = needed[i] | stream_needed[idx(step.stream)];
    if (needed[i] == 0) continue;
    stream_needed[idx(step.stream)] = 1;
    for (const Edge& edge : step.after) needed[idx(edge.step)] = 1;
  }
  Plan between;
  between.self = plan.self, between.target = plan.target, between.streams = plan.streams;
  between.groups = plan.groups, between.buffers = plan.buffers;
  std::vector<StepId> numbers(steps.size(), -1);
  for (std::size_t i = first + 1; i <= last; ++i) {
    if (waits[i] == 0 || needed[i] == 0) continue;
    numbers[i] = static_cast<StepId>(between.segments.size());
    Step step = *steps[i].step;
    std::erase_if(step.after, [&](const Edge& edge) { return numbers[idx(edge.step)] < 0; });
    for (Edge& edge : step.after) edge.step = numbers[idx(edge.step)];
    between.segments.emplace_back(std::move(step));
  }
  return replay_rank(between, question_.cluster, software_).exposed_ns();
}

AttentionTimes::Passes AttentionTimer::attention(const ParallelLayout& layout, int cp_index,
                                                 const AttentionProblem& problem) {
  const bool training = question_.workload.phase == Phase::training;
  AttentionRequest attention;
  attention.problem = problem;
  attention.ranks = RankGroups(layout, 0).cp_group();
  if (layout.cp > 1) attention.strategy = strategy_of(layout, problem);
  attention.keep_for_backward = training;
  attention.options.lse = LsePlace::computed;
  Hasher hasher;
  hasher.add(layout.cp).add(attention_key(layout, question_.cluster).ranks_apart).add(cp_index);
  hash(hasher, problem);
  hash(hasher, attention.strategy);
  const Digest key = hasher.digest();
  return attentions_.of(key, [&] {
    // The target of a step's plans: where a host has a copy for each entry of the batch, they have one for
    // all.
    const auto of = [&](AttentionPass pass) {
      return replayed(attention_plan(attention, pass, attention.ranks[idx(cp_index)], shape_target()));
    };
    return AttentionTimes::Passes{of(AttentionPass::forward),
                                  training ? of(AttentionPass::backward) : AttentionTimes::Pass{}};
  });
}

AttentionTimes::Passes AttentionTimer::recurrence(const ParallelLayout& layout, int cp_index) {
  AttentionKey key = key_of_places(layout, question_.cluster);
  key.scan = layout.scan, key.window_balance = {};
  const bool training = question_.workload.phase == Phase::training;
  // Ranks differ: the first one's chunk has no state that comes in, and the last one's hands none on.
  const std::pair key_of_rank{key, cp_index};
  return recurrences_.of(key_of_rank, [&] {
    const RecurrenceRequest request{recurrence_problem(question_.model, question_.workload, layout),
                                    RankGroups(layout, 0).cp_group(), recurrence_strategy(layout), training};
    const auto of = [&](RecurrencePass pass) {
      return replayed(recurrence_plan(request, pass, request.ranks[idx(cp_index)], shape_target()));
    };
    return AttentionTimes::Passes{of(RecurrencePass::forward),
                                  training ? of(RecurrencePass::backward) : AttentionTimes::Pass{}};
  });
}

StateScan AttentionTimer::best_scan(const ParallelLayout& layout, const Fits& fits) {
  if (!question_.model.recurrence || question_.fixed.scan || layout.cp == 1) return layout.scan;
  const int busiest = busiest_index({question_.model, question_.workload, layout}, 0);
  ParallelLayout tried = layout;
  StateScan best = layout.scan;
  double least_ns = std::numeric_limits<double>::infinity();
  for (const StateScan scan : state_scans()) {
    tried.scan = scan;
    if (!is_scan_of(question_.workload, scan) ||
        refuse(recurrence_problem(question_.model, question_.workload, tried), tried.cp,
               recurrence_strategy(tried), shape_target()) ||
        !fits(tried)) {
      continue;
    }
    const auto [forward, backward] = recurrence(tried, busiest);
    const double ns = forward.kernels_ns + forward.exposed_ns + backward.kernels_ns + backward.exposed_ns;
    if (ns < least_ns) least_ns = ns, best = scan;
  }
  return best;
}

// Layers differ in their homes and cores. What they take is the sum of what each kind takes and of what goes
// between neighbours, so that each combination is known once its parts are.
std::vector<ParallelLayout> AttentionTimer::best_mixers(const ParallelLayout& layout, const Fits& fits,
                                                        bool plans_run) {
  ParallelLayout first = layout;
  first.scan = best_scan(first, fits);
  if (!plans_run || layout.cp == 1) return {first};
  struct Mixers {
    ParallelLayout layout;
    MixersTime time;
  };
  std::vector<Mixers> others;
  const std::vector<std::optional<Core>> cores = own_cores(layout);
  for (const ParallelLayout& balances : own_balances(layout)) {
    if (balances != layout && refuse(question_.model, question_.workload, balances)) continue;
    ParallelLayout tried = balances;
    tried.scan = balances == layout ? first.scan : best_scan(balances, fits);
    for (const std::optional<Core>& core : cores) {
      tried.window_core = core;
      if (tried == first) continue;
      if (core != layout.window_core && refuse(question_.model, question_.workload, tried)) continue;
      if (fits(tried)) others.push_back({tried, {}});
    }
  }
  if (others.empty()) return {first};
  const MixersTime of_first = mixers_time(first);
  // What does not fit is no measure.
  double least_ns = fits(first) ? of_first.alone_ns : std::numeric_limits<double>::infinity();
  for (Mixers& other : others) {
    other.time = mixers_time(other.layout);
    least_ns = std::min(least_ns, other.time.alone_ns);
  }
  std::erase_if(others, [&](const Mixers& other) { return other.time.least_ns > least_ns; });
  std::stable_sort(others.begin(), others.end(),
                   [](const Mixers& a, const Mixers& b) { return a.time.alone_ns < b.time.alone_ns; });
  std::vector<ParallelLayout> best;
  best.reserve(others.size() + 1);
  for (const Mixers& other : others) best.push_back(other.layout);
  // Without choices of its own a layout has nothing that could put off other transfers, so that it is always
  // among them; of ties it is the first.
  const bool is_first = of_first.alone_ns <= least_ns * (1 + kTie);
  best.insert(is_first || best.empty() ? best.begin() : best.begin() + 1, first);
  return best;
}

std::vector<std::optional<Core>> AttentionTimer::own_cores(const ParallelLayout& layout) const {
  std::vector<std::optional<Core>> cores{layout.window_core};
  const auto is_cut = [](const LayerKind& kind) { return kind.window || kind.chunk; };
  const std::vector<LayerKind>& kinds = question_.model.kinds;
  if (question_.fixed.window_core || layout.window_core || std::none_of(kinds.begin(), kinds.end(), is_cut))
    return cores;
  for (const CoreFacts* core : all_cores()) {
    if (core->core != layout.strategy.core) cores.emplace_back(core->core);
  }
  return cores;
}

std::vector<ParallelLayout> AttentionTimer::own_balances(const ParallelLayout& layout) const {
  const Balance head_tail{Balance::Kind::head_tail}, contiguous{}, &of_all = layout.strategy.balance;
  const bool has_other = of_all == head_tail || of_all == contiguous;
  if (!has_other || question_.workload.phase != Phase::training) return {layout};
  const auto choices = [&](bool is_fixed, const std::optional<Balance>& given) {
    std::vector<std::optional<Balance>> all{given};
    if (!is_fixed) all.emplace_back(of_all == head_tail ? contiguous : head_tail);
    return all;
  };
  const Fixed& fixed = question_.fixed;
  std::vector<ParallelLayout> all;
  for (const auto& of_windows : choices(fixed.window_balance.has_value(), layout.window_balance)) {
    for (const auto& of_scans : choices(fixed.scan_balance.has_value(), layout.scan_balance)) {
      ParallelLayout& one = all.emplace_back(layout);
      one.window_balance = of_windows, one.scan_balance = of_scans;
    }
  }
  return all;
}

AttentionTimer::MixersTime AttentionTimer::mixers_time(const ParallelLayout& layout) {
  const std::vector<AttentionTimes::Passes>& of_kinds = of(layout).of_kinds;
  const std::vector<std::int64_t> layers = layers_of_kinds(question_.model);
  const SoftwareProfile& software = question_.software;
  const double forwards = forward_passes(layout.recompute);
  MixersTime time;
  for (std::size_t kind = 0; kind < layers.size(); ++kind) {
    const auto& [forward, backward] = of_kinds[kind];
    const auto count = static_cast<double>(layers[kind]);
    time.alone_ns += count * (forwards * (forward.kernels_ns + forward.exposed_ns) + backward.kernels_ns +
                              backward.exposed_ns);
    // As in StepBound::layers().
    const bool waits = is_least_alone(question_, layout, question_.model.kinds[kind]);
    const double forward_ns = waits ? forward.kernels_ns + (forward.may_come_early ? 0 : forward.exposed_ns)
                                    : software.forward_progress * forward.kernels_ns,
                 backward_ns = waits ? backward.kernels_ns : software.backward_progress * backward.kernels_ns;
    time.least_ns += count * (forwards * forward_ns + backward_ns + backward.behind_ns);
  }
  const std::array<double, kMostHomes> move_ns = moves(layout, first_busiest(layout));
  const std::vector<int> homes = homes_of_layers(question_.model, question_.workload, layout);
  // Gradients go back beside what is computed again, if anything is.
  const bool hides = layout.recompute.kind != Recompute::Kind::none;
  for (std::size_t layer = 0; layer + 1 < homes.size(); ++layer) {
    const auto from = idx(homes[layer]), to = idx(homes[layer + 1]);
    if (from == to) continue;
    const double ns = move_ns[from] + (hides ? 0 : move_ns[to]);
    time.alone_ns += ns, time.least_ns += ns;
  }
  return time;
}

bool AttentionTimer::rows_are_fewer(const ParallelLayout& layout) {
  AttentionKey key = attention_key(layout, question_.cluster);
  key.ranks_apart = 1, key.keys = {};
  return rows_fewer_.of(key, [&] {
    ParallelLayout sends = layout;
    sends.keys = Strategy::Keys::latent;
    const AttentionProblem problem =
        attention_problem(question_.model, question_.workload, sends, first_attention(question_.model));
    AttentionRequest request;
    request.problem = problem;
    request.ranks = RankGroups(layout, 0).cp_group();
    request.strategy = strategy_of(sends, problem);
    request.strategy.keys = Strategy::Keys::fewer_bytes;
    request.keep_for_backward = question_.workload.phase == Phase::training;
    return travelling_keys(request) == Strategy::Keys::latent;
  });
}

const std::set<int>& AttentionTimer::all_busiest(const ParallelLayout& layout) {
  static const std::set<int> kFirst{0};
  if (layout.cp == 1) return kFirst;
  // Pairs are where attention has its rows, whatever else has where, and however far apart the ranks are.
  AttentionKey of_pairs = attention_key(layout, question_.cluster);
  of_pairs.ranks_apart = of_pairs.slots = of_pairs.pieces = 1, of_pairs.scan = {}, of_pairs.scan_balance = {};
  const std::tuple key{of_pairs, layout.pp, layout.virtual_stages};
  return busiest_.of(key, [&] {
    const StepRequest request{question_.model, question_.workload, layout};
    std::set<int> indices;
    std::set<std::vector<int>> kinds;  // of stages that have been looked at
    const int stages = layout.pp * layout.virtual_stages;
    for (int stage = 0; stage < stages; ++stage) {
      const bool predicts = question_.model.prediction_layers > 0 && stage == stages - 1;
      if (kinds.insert(kinds_of_stage(question_.model, layout, stage)).second || predicts)
        indices.insert(busiest_index(request, stage));
    }
    return indices;
  });
}

// Of a layout without stages, whose first one has all layers.
int AttentionTimer::first_busiest(const ParallelLayout& layout) {
  ParallelLayout whole = layout;
  whole.pp = whole.virtual_stages = 1;
  return *all_busiest(whole).begin();
}

const AttentionTimes& AttentionTimer::of(const ParallelLayout& layout) {
  return of_rank(layout, first_busiest(layout));
}

AttentionTimes AttentionTimer::least(const ParallelLayout& layout) {
  AttentionTimes least;
  bool is_first = true;
  for (const int index : all_busiest(layout)) {
    const AttentionTimes& times = of_rank(layout, index);
    if (least.of_kinds.empty()) least = times;
    const auto lessen = [](AttentionTimes::Pass& pass, const AttentionTimes::Pass& more) {
      pass.kernels_ns = std::min(pass.kernels_ns, more.kernels_ns);
      pass.exposed_ns = more.may_come_early ? 0 : std::min(pass.exposed_ns, more.exposed_ns);
      pass.ring_ns = std::min({pass.ring_ns, more.ring_ns, pass.exposed_ns});
      pass.behind_ns = std::min(pass.behind_ns, more.behind_ns);
    };
    const auto lessen_both = [&](AttentionTimes::Passes& passes, const AttentionTimes::Passes& more) {
      lessen(passes.forward, more.forward), lessen(passes.backward, more.backward);
    };
    lessen_both(least.mean, times.mean);
    for (std::size_t kind = 0; kind < least.of_kinds.size(); ++kind)
      lessen_both(least.of_kinds[kind], times.of_kinds[kind]);
    const auto move_ns = moves(layout, index);
    for (std::size_t home = 0; home < move_ns.size(); ++home)
      least.move_ns[home] = is_first ? move_ns[home] : std::min(least.move_ns[home], move_ns[home]);
    is_first = false;
  }
  return least;
}

std::array<double, kMostHomes> AttentionTimer::moves(const ParallelLayout& layout, int cp_index) {
  if (layout.cp == 1 || (!layout.window_balance && !layout.scan_balance)) return {};
  const std::tuple key{key_of_places(layout, question_.cluster), cp_index, layout.row_ranks() > 1,
                       layout.order};
  return moves_.of(key, [&] {
    const StepRequest request{question_.model, question_.workload, layout};
    const Rank self = RankGroups(layout, 0).cp_group()[idx(cp_index)];
    std::array<double, kMostHomes> times{};
    for (const int home : {0, 1})
      times[idx(home)] =
          replay_rank(row_move_plan(request, home, self), question_.cluster, software_).time_ns;
    return times;
  });
}

const AttentionTimes& AttentionTimer::of_rank(const ParallelLayout& layout, int cp_index) {
  const std::pair key{attention_key(layout, question_.cluster), cp_index};
  return known_.of(key, [&] {
    const Transformer& model = question_.model;
    const std::vector<std::int64_t> layers = layers_of_kinds(model);
    std::vector<std::pair<AttentionProblem, std::size_t>> problems;  // with the kind that has it first
    AttentionTimes times;
    for (std::size_t kind = 0; kind < layers.size(); ++kind) {
      AttentionTimes::Passes of_kind;
      if (model.kinds[kind].mixer == Mixer::recurrence) of_kind = recurrence(layout, cp_index);
      if (model.kinds[kind].mixer == Mixer::attention) {
        // Kinds that differ in their MLP alone have the same attention.
        const AttentionProblem problem =
            attention_problem(model, question_.workload, layout, model.kinds[kind]);
        const auto same = std::find_if(problems.begin(), problems.end(),
                                       [&](const auto& known) { return known.first == problem; });
        of_kind =
            same == problems.end() ? attention(layout, cp_index, problem) : times.of_kinds[same->second];
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
    return times;
  });
}

}  // namespace cp::sim

#include "sim/planner/search/overlap.h"

#include <algorithm>

#include "shared/base/units.h"
#include "shared/context_parallel/cores.h"
#include "sim/planner/search/ranking.h"

namespace cp::sim {
namespace {

// Keys and values are gathered on all ranks at once. Backward they wait for no gradient, so that in a step
// the gather may run beside kernels of what lies behind attention. (With Ulysses dout comes before it, on the
// same stream.)
bool gathers_early(const ParallelLayout& layout) {
  const Strategy& strategy = layout.strategy;
  return strategy.ulysses_degree == 1 && facts(strategy.core).rotates != Rotates::queries &&
         !arrives_in_turn(strategy, layout.cp);
}

// Of a layer's attention in a step: forward, again where it is recomputed, and backward.
struct InStep {
  double kernels_ns = 0, exposed_ns = 0;
  double in_turn_ns = 0;  // of what is exposed, waiting for blocks that arrive in turn
  double early_ns = 0;    // of what is exposed, the most that a step may hide

  double ns() const { return kernels_ns + exposed_ns; }
};

InStep in_step(const ParallelLayout& layout, const AttentionTimes& times, bool training) {
  InStep sum;
  const auto add = [&](const AttentionTimes::Pass& pass, double number) {
    sum.kernels_ns += number * pass.kernels_ns, sum.exposed_ns += number * pass.exposed_ns;
    if (arrives_in_turn(layout.strategy, layout.cp)) sum.in_turn_ns += number * pass.ring_ns;
  };
  const auto& [forward, backward] = times.mean;
  add(forward, forward_passes(layout.recompute));
  if (!training) return sum;
  add(backward, 1);
  if (gathers_early(layout)) sum.early_ns = std::min(forward.ring_ns, backward.ring_ns);
  return sum;
}

}  // namespace

std::optional<ParallelLayout> with_rows(const LayoutSpace& space, AttentionTimer& timer,
                                        const ParallelLayout& layout) {
  if (!space.may_choose_rows(layout) || !timer.rows_are_fewer(layout)) return std::nullopt;
  ParallelLayout rows = layout;
  rows.keys = Strategy::Keys::latent;
  return rows;
}

AttentionTimes OverlapChoice::least_times(const ParallelLayout& layout, const AttentionTimes& times,
                                          const ParallelLayout& choice) {
  AttentionTimes least = times;
  const bool more_slots = choice.strategy.slots > layout.strategy.slots;
  const auto lessen = [&](AttentionTimes::Passes& passes) {
    for (AttentionTimes::Pass* pass : {&passes.forward, &passes.backward}) {
      const bool in_turn = more_slots || arrives_in_turn(layout.strategy, layout.cp);
      const double in_turn_ns = in_turn ? pass->ring_ns : 0;
      pass->exposed_ns = (pass->exposed_ns - in_turn_ns) * layout.strategy.pieces / choice.strategy.pieces;
      pass->behind_ns = in_turn ? 0 : pass->behind_ns * layout.strategy.pieces / choice.strategy.pieces;
    }
  };
  lessen(least.mean);
  std::for_each(least.of_kinds.begin(), least.of_kinds.end(), lessen);
  return least;
}

std::vector<ParallelLayout> OverlapChoice::best_of(const ParallelLayout& layout, double bound_ns,
                                                   const Ask& ask) const {
  std::vector<ParallelLayout> choices = space_.overlaps(layout);
  if (choices.size() > 1)
    std::erase_if(choices, [&](const ParallelLayout& choice) { return !ask.fits(choice); });
  if (choices.empty()) return {layout};
  if (choices.size() == 1) return choices;
  const bool training = question_.workload.phase == Phase::training;
  // A tie of the step, for each time that a layer's attention runs in it on one rank.
  const auto times_in_step = static_cast<double>(question_.model.layers) / layout.pp *
                             static_cast<double>(training ? accumulation(question_.workload, layout) : 1);
  const double tie_ns = kTie * bound_ns / times_in_step;
  struct Tried {
    const ParallelLayout* choice;
    InStep times;
  };
  std::vector<Tried> tried;
  double least_ns = kNever;
  // The least that a choice may take (overlap.h), by the one before it and the first of all.
  const auto at_least_ns = [&](const Strategy& strategy) {
    const Tried &first = tried.front(), &before = tried.back();
    const Strategy& known = before.choice->strategy;
    if (strategy.pieces == known.pieces) return before.times.ns() - before.times.in_turn_ns;
    const double more = static_cast<double>(strategy.pieces) / first.choice->strategy.pieces;
    return before.times.kernels_ns + (first.times.exposed_ns - first.times.in_turn_ns) / more;
  };
  for (const ParallelLayout& choice : choices) {
    if (!tried.empty()) {
      if (at_least_ns(choice.strategy) + tie_ns >= least_ns) continue;
      const ParallelLayout& first = *tried.front().choice;
      if (ask.matters && !ask.matters(choice, least_times(first, timer_.least(first), choice))) continue;
    }
    tried.push_back({&choice, in_step(choice, timer_.of(choice), training)});
    least_ns = std::min(least_ns, tried.back().times.ns());
  }
  std::vector<ParallelLayout> best;
  for (const auto& [choice, times] : tried) {
    const bool wins = times.ns() <= least_ns + tie_ns;
    if (wins || times.ns() - times.early_ns < least_ns) best.push_back(*choice);
    if (wins && times.early_ns == 0) break;  // the fewest pieces of those that tie
  }
  return best;
}

ParallelLayout OverlapChoice::in_most_pieces(const ParallelLayout& layout) const {
  ParallelLayout cut = layout;
  cut.strategy.pieces = space_.most_pieces_tried(layout);
  return cut;
}

}  // namespace cp::sim

#include "sim/planner/search/member_bounds.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "sim/base/stop.h"

namespace cp::sim {
namespace {

// What fits of members that differ in loss chunks, mlp_chunks and activations alone: where one does, no other
// that takes more pieces of the MLP, or host memory where that one has none, is faster.
class LeastSavings {
 public:
  // The place of the member, of those given, that makes this one unneeded.
  std::optional<std::size_t> unneeded_by(const ParallelLayout& layout) {
    if (!first_ || !(first_->strategy == layout.strategy) || !(first_->recompute == layout.recompute)) {
      first_ = layout;
      fitting_.clear();
    }
    for (const Fitting& one : fitting_) {
      const bool same =
          one.mlp_chunks == layout.mlp_chunks && one.host_activations == layout.host_activations;
      if (!same && one.mlp_chunks <= layout.mlp_chunks && one.host_activations <= layout.host_activations)
        return one.place;
    }
    return std::nullopt;
  }
  void fits(const ParallelLayout& layout, std::size_t place) {
    fitting_.push_back({layout.mlp_chunks, layout.host_activations, place});
  }

 private:
  struct Fitting {
    int mlp_chunks;
    bool host_activations;
    std::size_t place;
  };
  std::optional<ParallelLayout> first_;
  std::vector<Fitting> fitting_;
};

}  // namespace

Memory MemberBounds::memory_with_any_scan(const Memories& memories, const ParallelLayout& layout,
                                          const std::vector<StateScan>& lean) const {
  Memory least = memories.of(layout);
  if (tools_.fits(least)) return least;
  ParallelLayout leanest = layout;
  for (const StateScan scan : lean) {
    leanest.scan = scan;
    const Memory memory = memories.of(leanest);
    if (memory.used() < least.used()) least = memory;
  }
  return least;
}

// Members that differ in loss chunks alone stand together, the fewest first; the first that fits stands for
// the others, which take less memory and no less time, but for those whose memory would count between ties.
BoundedMembers MemberBounds::of(const std::vector<ParallelLayout>& members,
                                const std::function<double()>& update_ns) const {
  // Whoever takes too long has no place, and nobody else is faster that it stands for.
  constexpr std::size_t kPruned = std::numeric_limits<std::size_t>::max();
  BoundedMembers bounded;
  std::optional<ParallelLayout> chosen;
  std::int64_t chosen_step = 0;
  std::size_t chosen_place = kPruned;
  const Memories memories = tools_.memories.lease();
  double of_update_ns = 0;
  std::optional<FamilyBound> bound;  // once a member may fit
  LeastSavings least;
  std::optional<Strategy> whole, in_pieces;  // of the members at hand, which stand next to each other
  bool rows_may_travel = false;              // with that strategy
  std::vector<StateScan> lean;               // likewise
  for (const ParallelLayout& layout : members) {
    look_at_stop();
    if (const auto by = least.unneeded_by(layout)) {
      ++bounded.unneeded;
      if (*by != kPruned) bounded.members[*by].unneeded.push_back(layout);
      continue;
    }
    if (whole != layout.strategy) {
      whole = layout.strategy, in_pieces = tools_.overlap.in_most_pieces(layout).strategy;
      rows_may_travel = with_rows(tools_.space, tools_.attention, layout).has_value();
      lean = lean_scans(tools_.question, layout);
    }
    ParallelLayout cut = layout;
    cut.strategy.pieces = in_pieces->pieces;
    // What does not fit whole may do so in pieces.
    Memory memory = memory_with_any_scan(memories, layout, lean);
    Memory without = memory;
    without.attention = without.slack = 0;
    const bool only_in_pieces =
        !tools_.fits(memory) && cut.strategy.pieces > layout.strategy.pieces && tools_.fits(without);
    if (only_in_pieces) memory = memory_with_any_scan(memories, cut, lean);
    ParallelLayout rows = layout;
    rows.keys = Strategy::Keys::latent;
    if (rows_may_travel && !tools_.fits(memory)) {  // what does not fit with heads may do so with latent rows
      const Memory of_rows = memory_with_any_scan(memories, rows, lean);
      if (tools_.fits(of_rows)) memory = of_rows;
    }
    if (!tools_.fits(memory)) {
      ++bounded.out_of_memory;
      if (!bounded.leanest || memory.used() < bounded.leanest_used)
        bounded.leanest = only_in_pieces ? cut : layout, bounded.leanest_used = memory.used();
      continue;
    }
    const std::int64_t step = memory_step(memory, tools_.usable);
    if (chosen) {
      chosen->loss_chunks = layout.loss_chunks;
      if (*chosen == layout && step == chosen_step) {
        ++bounded.dominated;
        if (chosen_place != kPruned) bounded.members[chosen_place].dominated.push_back(layout);
        continue;
      }
    }
    chosen = layout;
    chosen_step = step;
    if (!bound) bound.emplace(tools_.bound, of_update_ns = update_ns());
    const double bound_ns = rows_may_travel ? std::min(bound->ns(cut), bound->ns(rows)) : bound->ns(cut);
    chosen_place = kPruned;
    if (marks_.needed(bound_ns, layout)) {
      chosen_place = bounded.members.size();
      bounded.members.push_back({layout, bound_ns, of_update_ns, {}, {}});
    } else {
      ++bounded.pruned;
    }
    least.fits(layout, chosen_place);
  }
  return bounded;
}

}  // namespace cp::sim

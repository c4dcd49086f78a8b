// OverlapChoice: in how many pieces, and with how many slots, a layout's attention runs beside its transfers.
//
// Layouts that differ in these two alone (LayoutSpace::overlaps) differ in attention alone. So the search
// does not replay a step for each of them: it takes the one with which a layer's attention takes least time
// (AttentionTimer), of those that fit into memory. Times of which a step would hardly differ, by less than a
// tie, are equal, and then the fewest pieces and slots come first.
//
// Where a step may hide what attention alone exposes, because keys and values are gathered early, each choice
// has an interval of times. All that may be the best one are left then, for the search to replay.
//
// What cannot win is not replayed:
//   - Kernels of a cut take no less time than those of the whole, and more pieces make smaller kernels. The
//     first piece comes before all kernels, and the last one goes home behind them, so that at least the
//     share 1 / pieces of what the whole exposes is exposed.
//   - A third slot shortens no kernel. At best it hides all that moves along the ring axis.
// tests/planner/overlap_test.cc compares steps with these choices with steps with all others.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "sim/planner/search/attention_times.h"
#include "sim/planner/search/layout_space.h"

namespace cp::sim {

// The layout, which must be a member, with latent rows in place of heads, where the search may choose that
// and the rows are fewer bytes. Whether its steps take less is another question: each rank expands the rows
// of the others again.
std::optional<ParallelLayout> with_rows(const LayoutSpace& space, AttentionTimer& timer,
                                        const ParallelLayout& layout);

// Several threads may use one choice. The question, the space and the timer must outlive it.
class OverlapChoice {
 public:
  OverlapChoice(const PlanQuestion& question, const LayoutSpace& space, AttentionTimer& timer)
      : question_(question), space_(space), timer_(timer) {}

  // What the choice asks of each layout that differs from the given one in pieces and slots.
  struct Ask {
    std::function<bool(const ParallelLayout&)> fits;
    // Whether it is of interest where its attention takes these times or more. If it is empty, each is.
    std::function<bool(const ParallelLayout&, const AttentionTimes& least)> matters;
  };
  // The layout with the pieces and slots that may be the fastest, of those that fit: the fewest first, at
  // least one, and mostly no more. If none fits, the layout itself. Its step takes `bound_ns` or more.
  std::vector<ParallelLayout> best_of(const ParallelLayout& layout, double bound_ns, const Ask& ask) const;
  // The least that attention of a choice takes, by the times of the layout without it.
  static AttentionTimes least_times(const ParallelLayout& layout, const AttentionTimes& times,
                                    const ParallelLayout& choice);
  // The layout in the most pieces that it may have. Its bound (bound.h) is the least of all choices'.
  ParallelLayout in_most_pieces(const ParallelLayout& layout) const;

 private:
  const PlanQuestion& question_;
  const LayoutSpace& space_;
  AttentionTimer& timer_;
};

}  // namespace cp::sim

// The search gives every layout of a question a lower bound of its time, replays those that may be among the
// best, and counts all others.
//
// It goes best first: families, and then layouts, leave a queue in the order of their bounds, and each replay
// sets the mark that the rest must beat or tie with (ranking.h). So no layout that was enumerated is left out
// if it could be among the answer's best, or be the best of a class.
#pragma once

#include <atomic>
#include <functional>

#include "shared/base/units.h"
#include "sim/planner/search/answer.h"
#include "sim/planner/search/nothing_fits.h"
#include "sim/planner/search/question.h"

namespace cp::sim {

struct SearchProgress {
  std::int64_t layouts = 0, bounded = 0, replayed = 0;
  double best_us = 0;  // 0: none yet
};

struct SearchOptions {
  int threads = 0;                                      // 0: all cores; the answer is the same for any number
  std::function<void(const SearchProgress&)> progress;  // called now and then, on the calling thread
  // When it becomes true, the search stops, and its answer is what was found so far, with a warning.
  const std::atomic<bool>* stop = nullptr;
  // Layouts whose step takes longer are left out; where that leaves none, the answer has no best one, and
  // nothing is said about memory.
  double most_us = kNever;
  bool exhaustive = false;          // replays everything that fits; tests use it
  NearestMisses* misses = nullptr;  // if nothing fits, takes what came nearest
};

// Answers the question, except for `timeline`, `nearest` and `published`. Throws Infeasible if nothing fits;
// the message names the layout that lacks least memory, and what would make it fit. Throws InvalidInput if
// nothing is legal, with the reasons.
PlanAnswer search_layouts(const PlanQuestion& question, const SearchOptions& options = {});

}  // namespace cp::sim

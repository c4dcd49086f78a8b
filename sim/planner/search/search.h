// The search: every layout of a question bounded from below, those that may be among the best replayed, all others counted.
//
// Best first: families and then layouts leave a queue in order of their bounds; what is replayed sets the mark that the rest must beat,
// or tie with (ranking.h).
// Nothing that could be among the answer's best, or the best of a class, is left out.
#pragma once

#include <atomic>
#include <functional>

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
  std::function<void(const SearchProgress&)> progress;  // now and then, from the calling thread
  const std::atomic<bool>* stop =
      nullptr;              // when it becomes true the answer is what was found so far, with a warning
  bool exhaustive = false;  // replays everything that fits: for tests
  NearestMisses* misses = nullptr;  // where nothing fits: what came nearest
};

// Without `timeline`, `nearest` and `published`. Throws Infeasible (exit code 20) where nothing fits, with the layout that lacks least
// memory and what would make it fit; InvalidInput where nothing is legal, with the reasons.
PlanAnswer search_layouts(const PlanQuestion& question, const SearchOptions& options = {});

}  // namespace cp::sim

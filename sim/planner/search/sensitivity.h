// How much an answer hangs on numbers that nobody is sure of, and which measurements would settle it.
#pragma once

#include <string>
#include <vector>

#include "sim/cost/timeline/rate_times.h"
#include "sim/planner/search/answer.h"

namespace cp::sim {

// A rate of the cluster, faster or slower by a tenth.
struct Changed {
  std::string rate;             // "attention", "products", "memory", "NVLink", "network", "latency", "host"
  double factor = 1;            // 0.9 or 1.1
  std::vector<double> step_us;  // of the layouts, in their order
  int best = 0;  // index of the first that is as fast as the fastest, but for a tie (ranking.h)
  Rate measured = Rate::products;  // of those that the name stands for, the one whose measurement tells it
};

struct Sensitivity {
  std::vector<ParallelLayout> layouts;  // the best ones of the answer, in order
  std::vector<double> step_us;          // as they are
  std::vector<Changed> changes;
  // Whether the best one stays the best whatever is changed.
  bool robust() const;
};
// Of the first `top` of answer.best.
Sensitivity sensitivity_of(const PlanAnswer& answer, int top = 10);

// A run that would tell tied layouts apart.
struct Experiment {
  ParallelLayout layout;
  double expected_us = 0;  // as the rates are believed to be
  std::string settles;     // "7.1 s means attention 10 % slower, 6.3 s network 10 % faster"
  double separates = 0;    // share of what was still open that it decides
};
// At most three, chosen one after the other: each tells apart most of the pairs of changes (the unchanged
// rates among them) that have different best layouts and that the runs before leave open. A run tells two
// changes apart when its times differ by more than `noise`. Empty where the best layout is the best under
// every change.
std::vector<Experiment> next_experiments(const Sensitivity& sensitivity, double noise = 0.02);

}  // namespace cp::sim

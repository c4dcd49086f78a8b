// How much an answer depends on numbers that nobody is sure of, and which runs would settle the choice.
#pragma once

#include <string>
#include <vector>

#include "sim/cost/timeline/rate_times.h"
#include "sim/planner/search/answer.h"

namespace cp::sim {

// The layouts' times after one rate of the cluster is made faster or slower by a tenth. The tenth is chosen;
// a rate that was measured on another machine of the same kind is off by 8 or 9 % (widths.h).
struct Changed {
  std::string rate;             // "attention", "products", "memory", "NVLink", "network", "latency", "host"
  double factor = 1;            // 0.9 or 1.1
  std::vector<double> step_us;  // of the layouts, in their order
  int best = 0;  // index of the first layout that is as fast as the fastest, or ties with it (ranking.h)
  // The rate to measure. `rate` may stand for several, for example attention forward and backward.
  Rate measured = Rate::products;
};

struct Sensitivity {
  std::vector<ParallelLayout> layouts;  // the best ones of the answer, in order
  std::vector<double> step_us;          // as they are
  std::vector<Changed> changes;
  // True if the best layout stays the best under every change.
  bool robust() const;
};
// Changes each rate for the first `top` layouts of answer.best.
Sensitivity sensitivity_of(const PlanAnswer& answer, int top = 10);

// A run that would tell tied layouts apart.
struct Experiment {
  ParallelLayout layout;
  double expected_us = 0;  // as the rates are believed to be
  std::string settles;     // "7.1 s means attention 10 % slower, 6.3 s network 10 % faster"
  double separates = 0;    // share of what was still open that it decides
};
// Chooses at most three runs, one after the other. A pair of changes (or of a change and the unchanged rates)
// is open if its two sides have different best layouts and no earlier run tells them apart. Each run is the
// one that decides most of the open pairs. A run decides a pair if the layout's times with the two changes
// differ by more than the share `noise`, whose default is chosen, not measured. Empty if the best layout is
// the best under every change.
std::vector<Experiment> next_experiments(const Sensitivity& sensitivity, double noise = 0.02);

}  // namespace cp::sim

// Which of several layouts to choose when their rates are known only so well.
//
// An error of a rate is common to all layouts that use it: where attention is slower than believed, it is for
// all of them, and what tells two layouts apart hangs on that much less than either one's time does. So the
// rates are drawn together, some thousand times, and all layouts are timed with each draw: by the chains of
// operations that may take a step's whole time, the longest of which counts. Nothing is replayed for it.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "sim/cost/timeline/drawn_times.h"

namespace cp::sim {

struct Choice {
  double low_us = 0, high_us = 0;  // one time in ten is below, one above
  double chance = 0;               // that it is the fastest, in [0, 1]; all chances add up to 1
  double chance_of_kind = 0;       // that one of its kind is
  double regret_us = 0;            // what it is expected to take beyond the fastest
};

struct Worth {
  Rate rate = Rate::products;
  double us = 0;  // of the least expected regret, what is gone when this rate is known
};

struct Decision {
  std::vector<Choice> choices;  // of the options, in their order
  std::size_t best = 0;         // of the least expected regret
  // Of the fewest kinds of which one has the fastest nine times in ten, likeliest first: the option of least
  // regret.
  std::vector<std::size_t> trying;
  std::vector<Worth> worths;  // of all rates, the largest first
  double strategies_us = 0;   // the same of knowing what the model gets wrong of the strategies
};

// `draws`: of the rates; the same ones at each call. Time: linear in draws, options and chains; 1,000 draws
// of 100 options with three chains each take a few milliseconds.
Decision decide(std::span<const Option> options, const Doubt& doubt, std::size_t draws = 1000);

// Probability that `a` takes longer than `b`, and the middle eight tenths of a's time over b's.
struct Comparison {
  double slower = 0;
  double low = 0, high = 0;
};
Comparison compare(const Option& a, const Option& b, const Doubt& doubt, std::size_t draws = 1000);

}  // namespace cp::sim

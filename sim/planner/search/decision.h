// decide(): which of several layouts to choose when the rates of the cluster are known only roughly.
//
// An error of a rate is common to all layouts that use it. If attention is slower than believed, it is slower
// in all of them, so the difference between two layouts depends on it much less than the time of either. That
// is why all rates are drawn together, about a thousand times, and all layouts are timed with each draw.
//
// A layout's time with a draw is that of the longest of its chains: operations of which each waits for the
// one before, and which may take a step's whole time (rate_times.h). So nothing is replayed for a draw.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "sim/cost/timeline/drawn_times.h"

namespace cp::sim {

struct Choice {
  double low_us = 0, high_us = 0;  // one draw in ten is below low_us, one in ten above high_us
  double chance = 0;               // share of the draws in which it is the fastest; all add up to 1
  double chance_of_kind = 0;       // share of the draws in which one of its kind is the fastest
  double regret_us = 0;            // by how much it is slower than the fastest, averaged over the draws
};

struct Worth {
  Rate rate = Rate::products;
  double us = 0;  // by how much the least expected regret falls if this rate is known exactly
};

struct Decision {
  std::vector<Choice> choices;  // of the options, in their order
  std::size_t best = 0;         // the option with the least expected regret
  // The options that are worth trying. They cover the fewest kinds such that in nine draws of ten the fastest
  // option is of one of these kinds; of each kind, the option of least regret, the likeliest kind first.
  std::vector<std::size_t> trying;
  std::vector<Worth> worths;  // of all rates, the largest first
  double strategies_us = 0;   // the same for the model's errors in the strategies
};

// Decides with `draws` draws of the rates, which are the same ones at each call. Takes time in proportion to
// draws, options and chains: a few milliseconds for 1,000 draws of 100 options with three chains each.
Decision decide(std::span<const Option> options, const Doubt& doubt, std::size_t draws = 1000);

// The probability that `a` takes longer than `b`, and the interval that holds eight tenths of the draws of
// a's time divided by b's.
struct Comparison {
  double slower = 0;
  double low = 0, high = 0;
};
Comparison compare(const Option& a, const Option& b, const Doubt& doubt, std::size_t draws = 1000);

}  // namespace cp::sim

// Times with each of about a thousand draws of the rates that they depend on.
//
// An error of a rate is common to everything that uses it, so all rates are drawn together. A time with a
// draw is that of the longest of its chains of operations (rate_times.h); nothing is replayed for a draw.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "sim/cost/timeline/rate_times.h"

namespace cp::sim {

// How far the truth may lie from what is believed, as standard deviations of the logarithm of times. 0.1
// means that two times in three are within 10 %.
struct Doubt {
  std::array<double, kNumRates> of_rate{};  // one error for all layouts
  // Of the software as a whole; common to all options, so it does not decide between them.
  double of_all = 0;
  double of_strategy = 0;  // of the time of attention: what the model gets wrong for one strategy
  double of_kind = 0;      // of the whole time: what it gets wrong for one kind of layouts

  double& operator[](Rate rate) { return of_rate[static_cast<std::size_t>(rate)]; }
  double operator[](Rate rate) const { return of_rate[static_cast<std::size_t>(rate)]; }
};

struct Option {
  std::vector<RateTimes> chains;  // us, as the rates are believed to be; at least one
  int kind = 0;                   // options of one kind share the error of their kind
  int strategy = 0;               // options of one strategy share the error of their strategy
  double attention_share = 0;  // attention's share of the time, in [0, 1]; the strategy's error applies to it
};

// One draw in ten is below `low`, one in ten above `high`.
struct Interval {
  double low = 0, high = 0;
  bool holds(double value) const { return low <= value && value <= high; }
};

// Of all options, with each draw.
struct DrawnTimes {
  std::array<std::vector<double>, kNumRates> errors;  // standard normal, by draw
  std::vector<std::vector<double>> us;                // by option, draw
  std::vector<std::vector<double>> of_strategy;       // by option, draw: the part due to its strategy's error
};
// Draws the times. The draws are the same at each call. Each option must have at least one chain.
DrawnTimes draw_times(std::span<const Option> options, const Doubt& doubt, std::size_t draws = 1000);

Interval interval_of(const std::vector<double>& values);
Interval interval_of(const Option& option, const Doubt& doubt);

}  // namespace cp::sim

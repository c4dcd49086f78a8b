// Times with each of some thousand draws of the rates that they hang on.
//
// An error of a rate is common to all that uses it, and so the rates are drawn together. A time is that of
// the chains of operations that may take it whole, the longest of which counts: nothing is replayed for a
// draw.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "sim/cost/timeline/rate_times.h"

namespace cp::sim {

// How far the truth lies from what is believed: standard deviations of the logarithm of times. 0.1: two in
// three are within 10 %.
struct Doubt {
  std::array<double, kNumRates> of_rate{};  // one error for all layouts
  double of_all = 0;       // of the software as a whole: the same for all, so that it tells none apart
  double of_strategy = 0;  // of the time of attention, what the model gets wrong of one strategy
  double of_kind = 0;      // and of the whole time of one kind of layouts

  double& operator[](Rate rate) { return of_rate[static_cast<std::size_t>(rate)]; }
  double operator[](Rate rate) const { return of_rate[static_cast<std::size_t>(rate)]; }
};

struct Option {
  std::vector<RateTimes> chains;  // us, as the rates are believed to be; at least one
  int kind = 0;      // those of one kind share the error of their kind, and its chance is that of all of them
  int strategy = 0;  // the same of a strategy
  double attention_share = 0;  // of the time, in [0, 1]: the strategy's error is one of that part
};

// One time in ten is below, one above.
struct Interval {
  double low = 0, high = 0;
  bool holds(double value) const { return low <= value && value <= high; }
};

// Of all options, with each draw.
struct DrawnTimes {
  std::array<std::vector<double>, kNumRates> errors;  // standard normal, by draw
  std::vector<std::vector<double>> us;                // by option, draw
  std::vector<std::vector<double>> of_strategy;       // the same: what its strategy's error is of its time
};
// The same draws at each call. Each option has a chain.
DrawnTimes draw_times(std::span<const Option> options, const Doubt& doubt, std::size_t draws = 1000);

Interval interval_of(const std::vector<double>& values);
Interval interval_of(const Option& option, const Doubt& doubt);

}  // namespace cp::sim

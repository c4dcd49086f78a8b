#include "sim/cost/timeline/drawn_times.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <random>
#include <utility>

#include <boost/math/distributions/normal.hpp>

#include "shared/base/error.h"

namespace cp::sim {
namespace {

constexpr double kTail = 0.1;          // share of the draws below an interval, and above: it holds 8 in 10
constexpr std::uint64_t kSeed = 2718;  // any: answers must not change from one call to the next

// Of the standard normal distribution, one from each of so many equally likely ranges, in random order: their
// mean and spread are those of the distribution however few there are (Latin hypercube sampling, McKay,
// Beckman and Conover 1979).
class Draws {
 public:
  explicit Draws(std::size_t count) : quantiles_(count) {
    const boost::math::normal normal;
    for (std::size_t i = 0; i < count; ++i) {
      quantiles_[i] =
          boost::math::quantile(normal, (static_cast<double>(i) + 0.5) / static_cast<double>(count));
    }
  }

  std::vector<double> next() {
    std::vector<double> values = quantiles_;
    for (std::size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[random_() % i]);
    return values;
  }

 private:
  std::vector<double> quantiles_;
  std::mt19937_64 random_{kSeed};
};

// Where the quantile lies among so many values in order.
std::ptrdiff_t quantile_place(double share, std::size_t count) {
  return std::lround(share * static_cast<double>(count - 1));
}

}  // namespace

DrawnTimes draw_times(std::span<const Option> options, const Doubt& doubt, std::size_t count) {
  Draws draws(count);
  DrawnTimes times;
  for (auto& errors : times.errors) errors = draws.next();
  const std::vector<double> of_all = draws.next();
  std::vector<RateFactors> factors(count);
  for (std::size_t draw = 0; draw < count; ++draw) {
    for (std::size_t rate = 0; rate < kNumRates; ++rate)
      factors[draw].of[rate] = std::exp(doubt.of_rate[rate] * times.errors[rate][draw]);
  }
  std::map<int, std::vector<double>> of_kind, of_strategy;
  const auto errors_of = [&](std::map<int, std::vector<double>>& all,
                             int number) -> const std::vector<double>& {
    std::vector<double>& errors = all[number];
    if (errors.empty()) errors = draws.next();
    return errors;
  };
  for (const Option& option : options) {
    CP_INVARIANT(!option.chains.empty(), "an option without a chain has no time");
    const std::vector<double>& kind = errors_of(of_kind, option.kind);
    const std::vector<double>& strategy = errors_of(of_strategy, option.strategy);
    const double of_strategy_share = doubt.of_strategy * option.attention_share;
    std::vector<double>&us = times.us.emplace_back(count), &wrong = times.of_strategy.emplace_back(count);
    for (std::size_t draw = 0; draw < count; ++draw) {
      double longest = 0;
      for (const RateTimes& chain : option.chains) longest = std::max(longest, factors[draw].of_chain(chain));
      wrong[draw] = of_strategy_share * strategy[draw];
      us[draw] = longest * std::exp(doubt.of_all * of_all[draw] + wrong[draw] + doubt.of_kind * kind[draw]);
    }
  }
  return times;
}

Interval interval_of(const std::vector<double>& values) {
  std::vector<double> sorted = values;
  const auto low = sorted.begin() + quantile_place(kTail, values.size()),
             high = sorted.begin() + quantile_place(1 - kTail, values.size());
  std::nth_element(sorted.begin(), low, sorted.end());
  if (high > low) std::nth_element(low + 1, high, sorted.end());  // above the first are none that are less
  return {*low, *high};
}

Interval interval_of(const Option& option, const Doubt& doubt) {
  return interval_of(draw_times({&option, 1}, doubt).us.front());
}

}  // namespace cp::sim

#include "sim/planner/search/decision.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

namespace cp::sim {
namespace {

// The chance that one of the layouts worth trying is the fastest. Chosen: a higher one makes the list longer.
constexpr double kSureEnough = 0.9;

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// The mean of what is beyond the fastest as it would be when the rate were known: each option's expected lead
// over the best is fitted by a parabola over the rate's error (the first Hermite polynomials, so that each
// coefficient is a mean).
double regret_taken_away(const DrawnTimes& times, const std::vector<Choice>& choices, std::size_t best,
                         const std::vector<double>& error) {
  const std::size_t draws = error.size();
  std::vector<double> most(draws, 0);
  for (std::size_t option = 0; option < times.us.size(); ++option) {
    if (option == best || choices[option].chance == 0) continue;
    std::array<double, 3> fit{};
    const auto basis = [](double z) { return std::array<double, 3>{1, z, (z * z - 1) / std::sqrt(2.0)}; };
    for (std::size_t draw = 0; draw < draws; ++draw) {
      const double lead = times.us[best][draw] - times.us[option][draw];
      const auto of = basis(error[draw]);
      for (std::size_t i = 0; i < fit.size(); ++i) fit[i] += of[i] * lead / static_cast<double>(draws);
    }
    for (std::size_t draw = 0; draw < draws; ++draw) {
      const auto of = basis(error[draw]);
      most[draw] = std::max(most[draw], fit[0] * of[0] + fit[1] * of[1] + fit[2] * of[2]);
    }
  }
  return mean(most);
}

// The same when the strategies' errors were known: the expected lead is fitted by a line over the difference
// of two options' errors.
double regret_taken_away_by_strategies(const DrawnTimes& times, const std::vector<Choice>& choices,
                                       std::size_t best) {
  const std::size_t draws = times.us[best].size();
  std::vector<double> most(draws, 0);
  for (std::size_t option = 0; option < times.us.size(); ++option) {
    if (option == best || choices[option].chance == 0) continue;
    const auto lead = [&](std::size_t draw) { return times.us[best][draw] - times.us[option][draw]; };
    const auto apart = [&](std::size_t draw) {
      return times.of_strategy[best][draw] - times.of_strategy[option][draw];
    };
    double mean_lead = 0, mean_apart = 0, both = 0, square = 0;
    for (std::size_t draw = 0; draw < draws; ++draw) mean_lead += lead(draw), mean_apart += apart(draw);
    mean_lead /= static_cast<double>(draws), mean_apart /= static_cast<double>(draws);
    for (std::size_t draw = 0; draw < draws; ++draw) {
      const double x = apart(draw) - mean_apart;
      both += x * (lead(draw) - mean_lead), square += x * x;
    }
    const double slope = square > 0 ? both / square : 0;
    for (std::size_t draw = 0; draw < draws; ++draw)
      most[draw] = std::max(most[draw], mean_lead + slope * (apart(draw) - mean_apart));
  }
  return mean(most);
}

}  // namespace

Decision decide(std::span<const Option> options, const Doubt& doubt, std::size_t draws) {
  Decision decision;
  if (options.empty()) return decision;
  const DrawnTimes times = draw_times(options, doubt, draws);
  decision.choices.resize(options.size());
  // In each draw one option is the fastest. Its time is what the regret of all others is counted from. Option
  // by option, since the times of one lie side by side: of ten thousand options that takes a tenth of the
  // time that it takes draw by draw.
  std::vector<double> fastest_us(draws, std::numeric_limits<double>::infinity());
  std::vector<std::size_t> fastest(draws, 0);
  for (std::size_t option = 0; option < options.size(); ++option) {
    for (std::size_t draw = 0; draw < draws; ++draw) {
      if (times.us[option][draw] < fastest_us[draw])
        fastest_us[draw] = times.us[option][draw], fastest[draw] = option;
    }
  }
  for (const std::size_t option : fastest) decision.choices[option].chance += 1 / static_cast<double>(draws);
  for (std::size_t option = 0; option < options.size(); ++option) {
    Choice& choice = decision.choices[option];
    const Interval interval = interval_of(times.us[option]);
    choice.low_us = interval.low, choice.high_us = interval.high;
    choice.regret_us = mean(times.us[option]) - mean(fastest_us);
    if (choice.regret_us < decision.choices[decision.best].regret_us) decision.best = option;
  }
  // Layouts of one kind are so much alike that trying one of them says how good the kind is. So chances are
  // added up over a kind, and the kinds most likely to hold the fastest are proposed, each by its best
  // option.
  struct Kind {
    double chance = 0;
    std::size_t best = 0;
  };
  std::map<int, Kind> kinds;
  for (std::size_t option = 0; option < options.size(); ++option) {
    Kind& kind = kinds.try_emplace(options[option].kind, Kind{0, option}).first->second;
    kind.chance += decision.choices[option].chance;
    if (decision.choices[option].regret_us < decision.choices[kind.best].regret_us) kind.best = option;
  }
  std::vector<Kind> likeliest;
  for (const auto& [number, kind] : kinds) likeliest.push_back(kind);
  for (std::size_t option = 0; option < options.size(); ++option)
    decision.choices[option].chance_of_kind = kinds.at(options[option].kind).chance;
  std::stable_sort(likeliest.begin(), likeliest.end(),
                   [](const Kind& a, const Kind& b) { return a.chance > b.chance; });
  double sure = 0;
  for (const Kind& kind : likeliest) {
    decision.trying.push_back(kind.best);
    sure += kind.chance;
    if (sure >= kSureEnough) break;
  }
  for (std::size_t rate = 0; rate < kNumRates; ++rate) {
    const double us = doubt.of_rate[rate] == 0
                          ? 0
                          : regret_taken_away(times, decision.choices, decision.best, times.errors[rate]);
    decision.worths.push_back({static_cast<Rate>(rate), us});
  }
  if (doubt.of_strategy > 0)
    decision.strategies_us = regret_taken_away_by_strategies(times, decision.choices, decision.best);
  std::stable_sort(decision.worths.begin(), decision.worths.end(),
                   [](const Worth& a, const Worth& b) { return a.us > b.us; });
  return decision;
}

Comparison compare(const Option& a, const Option& b, const Doubt& doubt, std::size_t draws) {
  const std::array<Option, 2> both = {a, b};
  const DrawnTimes times = draw_times(both, doubt, draws);
  std::vector<double> ratios(draws);
  Comparison comparison;
  for (std::size_t draw = 0; draw < draws; ++draw) {
    ratios[draw] = times.us[0][draw] / times.us[1][draw];
    comparison.slower += ratios[draw] > 1 ? 1 / static_cast<double>(draws) : 0;
  }
  const Interval interval = interval_of(ratios);
  comparison.low = interval.low, comparison.high = interval.high;
  return comparison;
}

}  // namespace cp::sim

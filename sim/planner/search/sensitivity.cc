#include "sim/planner/search/sensitivity.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "shared/base/text.h"
#include "sim/base/number_text.h"
#include "sim/planner/search/evaluate.h"
#include "sim/planner/search/ranking.h"

namespace cp::sim {
namespace {

// What people call a rate, and what it is made of.
struct NamedRates {
  const char* name;
  std::vector<Rate> rates;
};

const std::vector<NamedRates>& rates() {
  static const std::vector<NamedRates> all{
      {"attention", {Rate::attention_forward, Rate::attention_backward}},
      {"products", {Rate::products}},
      {"memory", {Rate::memory}},
      {"NVLink", {Rate::inside}},
      {"network", {Rate::network}},
      {"latency", {Rate::latency, Rate::launch}},
      {"host", {Rate::host}},
      {"host memory", {Rate::offload}},
  };
  return all;
}

std::vector<double> times_of(const PlanQuestion& question, const std::vector<ParallelLayout>& layouts,
                             const RateFactors& factors = {}) {
  Evaluator evaluator(question, factors);
  std::vector<double> times;
  for (const ParallelLayout& layout : layouts) times.push_back(evaluator.evaluate(layout).step_us);
  return times;
}

// The first in the answer's order that is as fast as the fastest, but for a tie.
int fastest_of(const std::vector<double>& times) {
  const double most = *std::min_element(times.begin(), times.end()) * (1 + kTie);
  return static_cast<int>(std::find_if(times.begin(), times.end(), [&](double us) { return us <= most; }) -
                          times.begin());
}

std::string words(const Changed& changed) {
  return changed.factor == 1 ? "rates as they are"
                             : str(changed.rate, " 10 % ", changed.factor > 1 ? "faster" : "slower");
}

}  // namespace

bool Sensitivity::robust() const {
  return std::all_of(changes.begin(), changes.end(),
                     [](const Changed& changed) { return changed.best == 0; });
}

Sensitivity sensitivity_of(const PlanAnswer& answer, int top) {
  Sensitivity result;
  for (const Candidate& candidate : answer.best) {
    if (static_cast<int>(result.layouts.size()) == top) break;
    result.layouts.push_back(candidate.layout);
  }
  result.step_us = times_of(answer.question, result.layouts);
  for (const NamedRates& named : rates()) {
    for (const double factor : {0.9, 1.1}) {
      RateFactors factors;
      for (const Rate rate : named.rates) factors[rate] = 1 / factor;
      Changed changed{named.name, factor, times_of(answer.question, result.layouts, factors), 0,
                      named.rates.front()};
      changed.best = fastest_of(changed.step_us);
      result.changes.push_back(std::move(changed));
    }
  }
  return result;
}

std::vector<Experiment> next_experiments(const Sensitivity& sensitivity, double noise) {
  std::vector<Changed> states = sensitivity.changes;
  states.insert(states.begin(), Changed{"", 1, sensitivity.step_us, fastest_of(sensitivity.step_us)});
  std::vector<std::pair<std::size_t, std::size_t>> open;  // states that call for different layouts
  for (std::size_t a = 0; a < states.size(); ++a) {
    for (std::size_t b = a + 1; b < states.size(); ++b) {
      if (states[a].best != states[b].best) open.emplace_back(a, b);
    }
  }
  std::vector<Experiment> experiments;
  while (!open.empty() && experiments.size() < 3) {
    std::size_t best_run = 0, most = 0;
    const auto apart = [&](std::size_t run, const auto& pair) {
      const double a = states[pair.first].step_us[run], b = states[pair.second].step_us[run];
      return std::abs(a - b) > noise * std::min(a, b);
    };
    for (std::size_t run = 0; run < sensitivity.layouts.size(); ++run) {
      const auto told = static_cast<std::size_t>(
          std::count_if(open.begin(), open.end(), [&](const auto& pair) { return apart(run, pair); }));
      if (told > most) most = told, best_run = run;
    }
    if (most == 0) break;  // no run tells any of them apart
    const auto widest = *std::max_element(open.begin(), open.end(), [&](const auto& x, const auto& y) {
      const auto gap = [&](const auto& pair) {
        return std::abs(states[pair.first].step_us[best_run] - states[pair.second].step_us[best_run]);
      };
      return gap(x) < gap(y);
    });
    experiments.push_back(
        {sensitivity.layouts[best_run], sensitivity.step_us[best_run],
         str(human_us(states[widest.first].step_us[best_run]), " means ", words(states[widest.first]), ", ",
             human_us(states[widest.second].step_us[best_run]), " ", words(states[widest.second])),
         static_cast<double>(most) / static_cast<double>(open.size())});
    std::erase_if(open, [&](const auto& pair) { return apart(best_run, pair); });
  }
  return experiments;
}

}  // namespace cp::sim

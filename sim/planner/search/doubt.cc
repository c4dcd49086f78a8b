#include "sim/planner/search/doubt.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "sim/base/parallel_for.h"
#include "sim/base/stop.h"
#include "sim/cost/timeline/rate_doubt.h"
#include "sim/planner/search/evaluate.h"
#include "sim/planner/search/ranking.h"

namespace cp::sim {
namespace {

// For how many layouts more chains are looked for. Chosen: each takes two replays.
constexpr std::size_t kMostReplayed = 64;
// Layouts slower than this many times the best get no more chains. Chosen: layouts share most of their rates,
// and no error of the others makes up for so much.
constexpr double kFarFromBest = 1.5;
// By how many standard deviations rates are moved to find more chains. 5 % of all rates lie further out.
constexpr double kFar = 2;

// Draws of the rates: as decide() takes them, and where somebody waits for the end. Chosen: of thousands of
// options the latter take a tenth of a second.
constexpr std::size_t kDraws = 1000, kDrawsIfStopped = 200;

const std::array<Rate, 3> kTransfers = {Rate::inside, Rate::network, Rate::latency};

bool is_of_transfers(Rate rate) {
  return std::find(kTransfers.begin(), kTransfers.end(), rate) != kTransfers.end();
}

// Transfers that much slower, and kernels faster; or the other way round.
RateFactors apart(const Doubt& doubt, double transfers) {
  RateFactors factors;
  for (std::size_t i = 0; i < kNumRates; ++i) {
    const double way = is_of_transfers(static_cast<Rate>(i)) ? transfers : -transfers;
    factors.of[i] = std::exp(way * kFar * doubt.of_rate[i]);
  }
  return factors;
}

// What of a strategy may be modelled wrong: how parts of attention meet, and whether stages wait for one
// another.
using StrategyKind = std::tuple<int, bool, bool>;

// Numbers for kinds and strategies, by first appearance.
class Options {
 public:
  Option of(const Candidate& candidate) {
    const ParallelLayout& layout = candidate.layout;
    const Strategy none, &strategy = layout.cp > 1 ? layout.strategy : none;
    const StrategyKind key{static_cast<int>(strategy.core), strategy.ulysses_degree > 1, layout.pp > 1};
    Option option{candidate.chains, number(kinds_, kind_of(layout)), number(strategies_, key), 0};
    for (const auto& [part, us] : candidate.parts) {
      if (part == TimePart::attention || part == TimePart::exposed_cp)
        option.attention_share += us / candidate.step_us;
    }
    return option;
  }

 private:
  template <class Key>
  static int number(std::map<Key, int>& known, const Key& key) {
    const auto next = static_cast<int>(known.size());
    return known.try_emplace(key, next).first->second;
  }

  std::map<LayoutKind, int> kinds_;
  std::map<StrategyKind, int> strategies_;
};

void add_chains(PlanAnswer& answer, const Doubt& doubt, int threads) {
  const std::vector<RateFactors> states = {apart(doubt, 1), apart(doubt, -1)};
  std::size_t replayed = 0;
  while (replayed < std::min(answer.all.size(), kMostReplayed) &&
         answer.all[replayed].step_us <= kFarFromBest * answer.all.front().step_us) {
    ++replayed;
  }
  std::vector<std::vector<Evaluator>> evaluators(static_cast<std::size_t>(threads));
  for (auto& of_thread : evaluators) {
    for (const RateFactors& factors : states) of_thread.emplace_back(answer.question, factors);
  }
  parallel_for(replayed, threads, [&](std::size_t i, std::size_t thread) {
    Candidate& candidate = answer.all[i];
    for (Evaluator& evaluator : evaluators[thread]) {
      const RateTimes chain = evaluator.chain(candidate.layout);
      if (std::find(candidate.chains.begin(), candidate.chains.end(), chain) == candidate.chains.end())
        candidate.chains.push_back(chain);
    }
  });
}

// What weigh() found of the same layout.
void take_over(const std::vector<Candidate>& all, Candidate& candidate) {
  const auto found = std::find_if(all.begin(), all.end(),
                                  [&](const Candidate& one) { return one.layout == candidate.layout; });
  if (found == all.end()) return;
  const Candidate& same = *found;
  candidate.chains = same.chains;
  candidate.low_us = same.low_us, candidate.high_us = same.high_us;
  candidate.chance = same.chance, candidate.regret_us = same.regret_us;
}

}  // namespace

Doubt doubt_of(const PlanQuestion& question) {
  const bool absorbed = latent_use(question.model, question.workload, {}) == LatentUse::absorbed;
  return doubt_of(question.cluster, question.software,
                  absorbed ? question.model.latent->kv_row() : question.model.head_dim,
                  {.decode = question.workload.phase == Phase::decode,
                   .experts = question.model.experts.has_value(),
                   .absorbed = absorbed});
}

void weigh(PlanAnswer& answer, int threads) {
  if (answer.all.empty()) return;
  const Doubt doubt = doubt_of(answer.question);
  std::size_t draws = kDraws;
  try {
    add_chains(answer, doubt, threads);
  } catch (const Stopped&) {  // the longest chains alone are nearly as good
    draws = kDrawsIfStopped;
  }
  Options numbers;
  std::vector<Option> options;
  for (const Candidate& candidate : answer.all) options.push_back(numbers.of(candidate));
  const Decision decision = decide(options, doubt, draws);
  for (std::size_t i = 0; i < answer.all.size(); ++i) {
    Candidate& candidate = answer.all[i];
    const Choice& choice = decision.choices[i];
    candidate.low_us = choice.low_us, candidate.high_us = choice.high_us;
    candidate.chance = choice.chance_of_kind, candidate.regret_us = choice.regret_us;
  }
  answer.worth_trying.clear();
  for (const std::size_t option : decision.trying) answer.worth_trying.push_back(answer.all[option].layout);
  answer.worths = decision.worths;
  answer.strategies_worth_us = decision.strategies_us;
  for (Candidate& candidate : answer.best) take_over(answer.all, candidate);
  for (ClassBest& of_class : answer.classes) {
    if (of_class.candidate) take_over(answer.all, *of_class.candidate);
  }
}

Candidate weighed(const PlanQuestion& question, const ParallelLayout& layout) {
  PlanAnswer alone;
  alone.question = question;
  alone.all = {Evaluator(question).evaluate(layout)};
  weigh(alone, 1);
  Candidate candidate = std::move(alone.all.front());
  candidate.chance = candidate.regret_us = 0;
  return candidate;
}

Comparison compare(const Candidate& a, const Candidate& b, const PlanQuestion& question) {
  Options numbers;
  return compare(numbers.of(a), numbers.of(b), doubt_of(question));
}

}  // namespace cp::sim

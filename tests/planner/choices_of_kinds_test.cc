// Of models whose layers differ: the search finds the fastest of all layouts, whatever strategies and
// balances the layers of each kind may have, although it chooses them one by one
// (AttentionTimer::best_mixers).
#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "shared/context_parallel/cores.h"
#include "sim/planner/search/evaluate.h"
#include "sim/planner/search/layout_space.h"
#include "sim/planner/search/ranking.h"
#include "sim/planner/search/search.h"
#include "tests/planner/questions.h"

namespace cp::sim {
namespace {

using testing::small_question;

// What layers of one kind may have of their own.
struct OwnChoices {
  std::vector<std::optional<Core>> cores;
  std::vector<std::optional<Balance>> window_balances, scan_balances;
  std::vector<StateScan> scans;
};

std::vector<std::optional<Core>> cores() {
  std::vector<std::optional<Core>> all{std::nullopt};
  for (const CoreFacts* core : all_cores()) all.emplace_back(core->core);
  return all;
}
std::vector<std::optional<Balance>> balances() {
  return {std::nullopt, Balance{}, Balance{Balance::Kind::head_tail}};
}

// The fastest of all members of the space with all choices of their own.
struct Fastest {
  double us = std::numeric_limits<double>::infinity();
  ParallelLayout layout;
  int looked_at = 0;
  double slowest_choice_us = 0;  // of the fastest member
};
Fastest fastest_of_all(const PlanQuestion& question, const OwnChoices& own) {
  Fastest fastest;
  Evaluator evaluator(question);
  const LayoutSpace space(question);
  double slowest_us = 0;  // of the choices of one member
  bool is_fastest = false;
  const auto look_at = [&](const ParallelLayout& layout) {
    if (refuse(question.model, question.workload, layout)) return;
    const double us = evaluator.evaluate(layout).step_us;
    ++fastest.looked_at;
    slowest_us = std::max(slowest_us, us);
    if (us >= fastest.us) return;
    fastest.us = us, fastest.layout = layout, is_fastest = true;
  };
  for (const ParallelLayout& family : space.families()) {
    if (refuse(question.model, question.workload, family)) continue;
    for (const ParallelLayout& member : space.members(family)) {
      slowest_us = 0, is_fastest = false;
      for (const auto& core : own.cores) {
        for (const auto& window_balance : own.window_balances) {
          for (const auto& scan_balance : own.scan_balances) {
            for (const StateScan scan : own.scans) {
              ParallelLayout layout = member;
              layout.window_core = core, layout.window_balance = window_balance;
              layout.scan_balance = scan_balance, layout.scan = scan;
              look_at(layout);
            }
          }
        }
      }
      if (is_fastest) fastest.slowest_choice_us = slowest_us;
    }
  }
  return fastest;
}

// Few of what is no choice of a kind.
PlanQuestion question_of(const std::vector<LayerKind>& layers, std::int64_t seq_len) {
  PlanQuestion question = small_question(4, seq_len, 4);
  question.model.layers = std::ssize(layers);
  set_layers(question.model, layers);
  Fixed& fixed = question.fixed;
  fixed.order = AxisOrder::tp_cp_dp_pp, fixed.recompute = Recompute{}, fixed.loss_chunks = 1;
  fixed.micro_batch = 1, fixed.pp = 1, fixed.pieces = 1, fixed.slots = 2, fixed.cp = 4;
  return question;
}

void expect_found(const PlanQuestion& question, const OwnChoices& own, int least_looked_at) {
  const Fastest fastest = fastest_of_all(question, own);
  // A wrong choice would show: it takes longer than what counts as a tie.
  EXPECT_GT(fastest.slowest_choice_us, fastest.us * (1 + 2 * kTie)) << to_string(fastest.layout);
  const Candidate found = search_layouts(question, {}).best.front();
  EXPECT_GE(fastest.looked_at, least_looked_at);
  EXPECT_LE(found.step_us, fastest.us * (1 + kTie))
      << to_string(found.layout) << " was found, and " << to_string(fastest.layout) << " is faster";
}

constexpr LayerKind kFull;
const LayerKind kRecurrence{{}, {}, false, Mixer::recurrence, true};
LayerKind window(std::int64_t length) { return {length, {}, false, Mixer::attention, true}; }

// Of a short window need_only is the fastest. Where it is most of the sequence another core is: with 5,000 of
// 8,192 tokens pass_q takes 0.7 % less than that of all layers.
TEST(ChoicesOfKinds, OfLayersWithWindowsAreTheBestOfAllCores) {
  const OwnChoices own{cores(), balances(), {std::nullopt}, {StateScan::all_gather}};
  expect_found(question_of({kFull, window(5000), window(5000), kFull}, 8192), own, 100);
  expect_found(question_of({kFull, window(64), window(64), kFull}, 65536), own, 100);
}

TEST(ChoicesOfKinds, OfRecurrencesAreTheBestOfAllScans) {
  const OwnChoices own{{std::nullopt}, {std::nullopt}, balances(), state_scans()};
  for (const auto& [rule, seq_len] : std::vector<std::pair<RecurrenceRule, std::int64_t>>{
           {RecurrenceRule::delta, 8192}, {RecurrenceRule::decay, 65536}}) {
    PlanQuestion question = question_of({kRecurrence, kFull, kRecurrence, kRecurrence}, seq_len);
    question.model.recurrence = Recurrence{rule, 8, 16, 64, 32, 4, false};
    expect_found(question, own, 100);
  }
}

TEST(ChoicesOfKinds, OfWindowsAndRecurrencesTogether) {
  PlanQuestion question = question_of({kRecurrence, window(300), kFull, kRecurrence}, 32768);
  question.model.recurrence = Recurrence{RecurrenceRule::delta, 8, 16, 64, 32, 4, false};
  question.fixed.tp = 1;
  expect_found(question, {cores(), balances(), balances(), state_scans()}, 100);
}

}  // namespace
}  // namespace cp::sim

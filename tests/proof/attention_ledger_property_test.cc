// The ledger of attention plans, on any problem and strategy: a change of a slice is found, and so is
// whatever makes results wrong.
#include <iterator>
#include <optional>
#include <random>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/error.h"
#include "shared/plan/check.h"
#include "sim/fuzz/mutate/plan_mutations.h"
#include "sim/proof/run/attention_run.h"
#include "tests/context_parallel/problem_generator.h"
#include "tests/proof/attention_ledger_defects.h"
#include "tests/support/any_case.h"
#include "tests/support/ranks.h"

namespace cp::testing {
namespace {

// Any slice of any plan, dropped, doubled or moved: found unless what is computed stays the same. Where no
// query sees a key, as in many small problems, there is nothing to change.
RC_GTEST_PROP(AttentionLedgerOfAnyPlans, FindsEveryChangeOfASlice, ()) {
  const AttentionProblem problem = *any_problem();
  const int cp = pick("cp", rc::gen::inRange(1, 6));
  const Strategy strategy = *any_strategy(problem, cp);
  const AttentionRequest request{problem, first_ranks(cp), strategy,
                                 pick("keep_for_backward", rc::gen::arbitrary<bool>())};
  const AttentionPass pass = pick("pass", rc::gen::element(AttentionPass::forward, AttentionPass::backward));
  std::vector<Plan> plans = attention_plans(request, pass);
  RC_ASSERT(look(request, pass, plans).nothing());

  std::vector<Damage> damages;
  const std::int64_t by = pick("by", rc::gen::element(-2, -1, 1, 2));
  for (const SliceChange& change : {drop_slice(), repeat_slice(), move_slice(by, 0), move_slice(0, by),
                                    resize_slice(by, 0), resize_slice(0, by), move_diagonal(by)}) {
    const std::vector<Damage> more = change_slices(plans, change, {"computed query"});
    damages.insert(damages.end(), more.begin(), more.end());
  }
  RC_CLASSIFY(damages.empty(), "nothing to change");
  if (damages.empty()) return;
  const Damage& damage = pick("damage", rc::gen::elementOf(damages));
  damage.apply();
  const Found found = look(request, pass, plans);
  RC_LOG() << to_string(problem) << " by " << to_string(strategy) << " on " << cp
           << " ranks: " << damage.place << "\n"
           << found.text() << "\n";
  RC_ASSERT(found.check.empty());
  RC_ASSERT(found.cells.summary().find("computed query") != std::string::npos);
  RC_ASSERT(found.bytes.empty());
}

// Some damage of the plans that check() takes for a legal program; nothing when none of a few tries is.
std::optional<std::string> damage_meaning(std::vector<Plan>& plans, std::mt19937_64& random) {
  const std::vector<Plan> clean = plans;
  for (int attempt = 0; attempt < 30; ++attempt) {
    plans = clean;
    std::string text;
    if (random() % 2 == 0) {
      const auto& [kind, name, words] = sim::all_mutations()[random() % sim::all_mutations().size()];
      // What a type loses is in no ledger.
      if (kind == sim::MutationKind::change_dtype) continue;
      const auto place = static_cast<std::int64_t>(random() >> 1);
      const auto mutation = sim::mutate(plans, kind, place, random());
      if (!mutation) continue;
      text = mutation->text;
    } else {
      const Defect& defect = all_defects()[random() % all_defects().size()];
      std::vector<Damage> damages = defect.damages(plans);
      if (damages.empty()) continue;
      const Damage& damage = damages[random() % damages.size()];
      damage.apply();
      text = str(defect.name, ": ", damage.place);
    }
    try {
      check(plans);
      return text;
    } catch (const Error&) {
    }
  }
  plans = clean;
  return std::nullopt;
}

// Any plans, damaged in any way that check() cannot know about: where the results differ from those of one
// device, the cells are wrong. The converse does not hold: rows that nobody needs may be anything.
RC_GTEST_PROP(AttentionLedgerOfAnyPlans, FindsWhateverMakesResultsWrong, (std::uint64_t seed)) {
  const AttentionProblem problem = *any_problem();
  const int cp = pick("cp", rc::gen::inRange(1, 5));
  const AttentionRequest request{problem, first_ranks(cp), *any_strategy(problem, cp), true};
  std::vector<Plan> forward = attention_plans(request, AttentionPass::forward);
  std::vector<Plan> backward = attention_plans(request, AttentionPass::backward);
  std::mt19937_64 random(seed);
  const bool in_backward = pick("in_backward", rc::gen::arbitrary<bool>());
  const std::optional<std::string> damage = damage_meaning(in_backward ? backward : forward, random);
  RC_CLASSIFY(!damage, "nothing to damage");
  if (!damage) return;
  sim::AttentionRunOptions options;
  options.backward = in_backward;
  if (!in_backward) backward.clear();
  sim::AttentionRun run;
  try {
    run = sim::run_attention(sim::AttentionTestData(problem, seed), request, forward, backward, options);
  } catch (const Error&) {
    RC_SUCCEED("refused by the fabric");
  }
  std::string wrong, ledger;
  for (const sim::TensorError& error : run.errors) wrong += error.finding;
  for (const sim::Verdict& verdict : run.verdicts) {
    if (verdict.name == "mask cells") ledger = verdict.finding;
  }
  RC_LOG() << to_string(problem) << " by " << to_string(request.strategy) << " on " << cp
           << " ranks: " << (in_backward ? "backward, " : "forward, ") << *damage << "\n"
           << wrong << "\n";
  RC_CLASSIFY(!wrong.empty(), "wrong results");
  RC_CLASSIFY(!ledger.empty(), "wrong cells");
  RC_ASSERT(wrong.empty() || !ledger.empty());
}

}  // namespace
}  // namespace cp::testing

// A mutation of a correct set of plans is caught by the checker, or the plans still do exactly what they did.
//
// Some mutations make another legal program (Mutation::may_change_meaning): the checker cannot know what was
// wanted. Of these too it must prove what it promises: whatever the order of unordered steps, the plans
// finish, and with one result.
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/error.h"
#include "shared/plan/check.h"
#include "sim/fuzz/mutate/plan_mutations.h"
#include "tests/property/example_plans.h"
#include "tests/property/reference_interpreter.h"
#include "tests/support/any_case.h"

namespace cp::testing {
namespace {

using sim::all_mutations;
using sim::Mutation;
using sim::MutationInfo;
using sim::MutationKind;

enum class Verdict : std::uint8_t { caught, harmless, another_program, missed };

std::optional<std::string> complaint(const std::vector<Plan>& plans) {
  try {
    check(plans);
  } catch (const Error& error) {
    return error.what();
  }
  return std::nullopt;
}

constexpr int kInterleavings = 6;

// The results of all interleavings tried, in both modes: empty when they differ or one does not finish.
std::optional<Results> only_result(const std::vector<Plan>& plans, std::mt19937_64& random,
                                   std::string& fault) {
  std::optional<Results> first;
  for (int i = 0; i < kInterleavings; ++i) {
    try {
      Results results = interpret(plans, random, i % 2 == 1);
      if (first && *first != results) {
        fault = "two interleavings give different results";
        return std::nullopt;
      }
      first = std::move(results);
    } catch (const RunFault& error) {
      fault = error.what();
      return std::nullopt;
    }
  }
  return first;
}

struct Trial {
  Verdict verdict = Verdict::missed;
  Mutation mutation;
  std::string explanation;
};

std::optional<Trial> attempt(const Example& example, MutationKind kind, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Plan> plans = example.make();
  const Results expected = interpret(plans, random, false);
  const auto place = static_cast<std::int64_t>(random() >> 1);
  const std::optional<Mutation> mutation = sim::mutate(plans, kind, place, random());
  if (!mutation) return std::nullopt;
  Trial trial{Verdict::missed, *mutation, ""};
  if (const auto message = complaint(plans)) {
    trial.verdict = Verdict::caught;
    trial.explanation = *message;
    return trial;
  }
  const std::optional<Results> results = only_result(plans, random, trial.explanation);
  if (results && *results == expected) {
    trial.verdict = Verdict::harmless;
  } else if (results && mutation->may_change_meaning) {
    trial.verdict = Verdict::another_program;
  } else if (results) {
    trial.explanation = "the result is another one";
  }
  return trial;
}

TEST(PlanMutation, ExamplesAreCorrect) {
  std::mt19937_64 random(1);
  for (const Example& example : examples()) {
    const std::vector<Plan> plans = example.make();
    EXPECT_EQ(complaint(plans), std::nullopt) << example.name;
    std::string fault;
    EXPECT_TRUE(only_result(plans, random, fault)) << example.name << ": " << fault;
  }
}

RC_GTEST_PROP(PlanMutation, IsCaughtOrHarmless, (std::uint64_t seed)) {
  const auto example = pick("example", rc::gen::inRange<std::size_t>(0, examples().size()));
  const auto kind = pick("kind", rc::gen::inRange<std::size_t>(0, all_mutations().size()));
  const std::optional<Trial> trial = attempt(examples()[example], all_mutations()[kind].kind, seed);
  RC_PRE(trial.has_value());
  RC_LOG() << examples()[example].name << ": " << trial->mutation.text << ": " << trial->explanation << "\n";
  RC_ASSERT(trial->verdict != Verdict::missed);
}

// Each kind of damage is tried often on each example; the tally shows that the property above is about
// something.
TEST(PlanMutation, EveryKindIsCaughtSomewhere) {
  constexpr std::uint64_t kSeeds = 60;
  for (const MutationInfo& info : all_mutations()) {
    std::map<Verdict, int> tally;
    for (const Example& example : examples()) {
      for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
        const std::optional<Trial> trial = attempt(example, info.kind, seed);
        if (!trial) break;
        ++tally[trial->verdict];
        EXPECT_NE(trial->verdict, Verdict::missed) << example.name << ", seed " << seed << ": "
                                                   << trial->mutation.text << ": " << trial->explanation;
      }
    }
    if (tally.empty()) continue;  // no example has attention or roots that all ranks could mistake
    EXPECT_GT(tally[Verdict::caught] + tally[Verdict::another_program], 0) << info.name;
    std::printf("%-28s caught %4d, harmless %4d, another program %4d\n", std::string(info.name).c_str(),
                tally[Verdict::caught], tally[Verdict::harmless], tally[Verdict::another_program]);
  }
}

}  // namespace
}  // namespace cp::testing

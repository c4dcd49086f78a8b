#include "sim/planner/search/completion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "sim/planner/search/feasible.h"
#include "sim/planner/search/inverse.h"
#include "sim/scenario/plan_fixed.h"
#include "tests/planner/questions.h"

namespace cp::sim {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Kind = Completion::Kind;
using testing::small_question;
using testing::training_question;

PartialLayout tp_cp(int tp, int cp, int gpus) {
  PartialLayout asked{str("tp=", tp, ",cp=", cp), {}, std::nullopt};
  asked.given.tp = tp, asked.given.cp = cp;
  if (gpus % (tp * cp) == 0) asked.as_written = parse_parallel_layout(asked.text, gpus);
  return asked;
}

// Keys that are not given are searched: the answer is that of a search that fixes the given ones.
TEST(Completion, SearchesTheKeysThatAreNotGiven) {
  PlanQuestion question = small_question(8, 65536);
  const Completion found = complete(question, tp_cp(2, 4, 8));
  ASSERT_EQ(found.kind, Kind::fits);
  PlanQuestion fixed = question;
  fixed.fixed.tp = 2, fixed.fixed.cp = 4;
  const Candidate best = search_layouts(fixed).best.front();
  EXPECT_EQ(to_string(found.candidate->layout), to_string(best.layout));
  EXPECT_EQ(found.candidate->step_us, best.step_us);
  EXPECT_THAT(found.found, AllOf(HasSubstr("strategy="), HasSubstr("balance="), Not(HasSubstr("tp=")),
                                 Not(HasSubstr("cp="))));
  // Beside it the layout that defaults alone make, whose first rows' owner waits for the last ones'.
  ASSERT_TRUE(found.as_written);
  EXPECT_EQ(to_string(found.as_written->layout), "tp=2,cp=4,strategy=ring,balance=contiguous");
  EXPECT_GT(found.as_written->step_us, 1.2 * found.candidate->step_us);
}

// A layout's own text finds itself, with nothing left to say.
TEST(Completion, OfTheBestIsTheBest) {
  const PlanQuestion question = small_question(8, 65536);
  const Candidate best = search_layouts(question).best.front();
  PartialLayout asked{to_string(best.layout), {}, best.layout};
  asked.given.tp = best.layout.tp, asked.given.cp = best.layout.cp, asked.given.pp = best.layout.pp;
  asked.given.dp_shard = best.layout.dp_shard, asked.given.dp_replicate = best.layout.dp_replicate;
  asked.given.ulysses_degree = best.layout.strategy.ulysses_degree;
  asked.given.balance = best.layout.strategy.balance, asked.given.recompute = best.layout.recompute;
  const Completion found = complete(question, asked);
  ASSERT_EQ(found.kind, Kind::fits);
  EXPECT_EQ(found.candidate->step_us, best.step_us);
}

// What does not fit is timed, too: that which lacks least memory.
TEST(Completion, TimesWhatDoesNotFit) {
  PlanQuestion question = training_question("llama-3.1-70b", 1, 32768, 8);
  const Completion found = complete(question, tp_cp(1, 8, 8));
  ASSERT_EQ(found.kind, Kind::too_large);
  ASSERT_TRUE(found.candidate);
  EXPECT_GT(found.candidate->step_us, 0);
  EXPECT_FALSE(found.candidate->fits());
  EXPECT_THAT(found.reason, HasSubstr("does not fit: "));
}

// The suggestion of a key alone may be one that the GPUs cannot share: what is suggested was tried.
TEST(Completion, SuggestsOnlyWhatWorks) {
  PlanQuestion question = training_question("qwen2.5-7b", 8, 65536, 64);
  const Completion found = complete(question, tp_cp(8, 8, 64));
  ASSERT_EQ(found.kind, Kind::rejected);
  EXPECT_EQ(found.reason, "num_attention_heads=28 is not divisible by tp=8");
  EXPECT_EQ(found.works, "tp=4,cp=8");
  PlanQuestion suggested = question;
  suggested.fixed.tp = 4, suggested.fixed.cp = 8;
  EXPECT_TRUE(feasible(suggested));
}

bool works(PlanQuestion question, const Fixed& fixed) {
  question.fixed = fixed;
  try {
    return feasible(question).has_value();
  } catch (const InvalidInput&) {  // the degrees do not divide the GPUs
    return false;
  }
}

// Of all degrees that do not work, those that do not divide the GPUs among them: what is suggested works, and
// nothing is suggested only where no other value of either key does.
TEST(Completion, WhatIsSuggestedWorksWhateverWasAsked) {
  constexpr int kGpus = 8;
  for (const char* model : {"qwen2.5-7b", "llama-3.1-8b"}) {
    const PlanQuestion question = training_question(model, 1, 16384, kGpus);
    for (int tp = 1; tp <= kGpus + 1; ++tp) {
      for (int cp = 1; cp <= kGpus + 1; ++cp) {
        const PartialLayout asked = tp_cp(tp, cp, kGpus);
        if (works(question, asked.given)) continue;
        PlanQuestion of_keys = question;
        of_keys.fixed = merged(question.fixed, asked.given);
        const std::string suggested = nearest_layout(of_keys, asked.text, asked.given);
        SCOPED_TRACE(str(model, ": ", asked.text, " => '", suggested, "'"));
        if (!suggested.empty()) {
          EXPECT_NE(suggested, asked.text);
          EXPECT_TRUE(works(question, parse_fixed({suggested}, Phase::training)));
          continue;
        }
        for (int other = 1; other <= kGpus; ++other) {
          EXPECT_FALSE(works(question, tp_cp(other, cp, kGpus).given)) << other;
          EXPECT_FALSE(works(question, tp_cp(tp, other, kGpus).given)) << other;
        }
      }
    }
  }
}

// A degree by its older name is replaced, not left beside the new one.
TEST(Completion, ASuggestionReplacesTheKeyByWhateverNameItWasGiven) {
  PlanQuestion question = training_question("llama-3.1-8b", 1, 16384, 8);
  const Fixed given = parse_fixed({"dp=3,tp=2"}, Phase::training);
  question.fixed = given;
  const std::string suggested = nearest_layout(question, "dp=3,tp=2", given);
  EXPECT_THAT(suggested, AllOf(HasSubstr("tp=2"), HasSubstr("dp_shard="), Not(HasSubstr("dp=3"))));
  EXPECT_TRUE(works(question, parse_fixed({suggested}, Phase::training)));
}

// Fixed degrees that no layout can have are refused with a value that one can.
TEST(Completion, DegreesThatDoNotDivideTheGpusAreRefusedWithAValueThatWorks) {
  PlanQuestion question = training_question("qwen2.5-7b", 8, 65536, 64);
  question.fixed.tp = 7;
  EXPECT_THAT([&] { search_layouts(question); },
              ::testing::ThrowsMessage<InvalidInput>(
                  AllOf(HasSubstr("do not fit 64 GPUs"), HasSubstr("for example, tp=4 works"))));
}

TEST(Completion, SuggestsNothingWhereNoOtherValueOfAKeyWorks) {
  PlanQuestion question = training_question("llama-3.1-405b", 1, 32768, 8);
  const Completion found = complete(question, tp_cp(8, 1, 8));
  EXPECT_EQ(found.kind, Kind::too_large);
  EXPECT_THAT(found.works, IsEmpty());
}

// Degrees belong together, and so do the keys of a strategy.
TEST(Merged, ALayoutsOwnKeysReplaceThoseOfTheQuestionGroupByGroup) {
  Fixed question, given;
  question.cp = 8, question.strategy = "ulysses", question.recompute = Recompute{Recompute::Kind::full, 1};
  given.tp = 8;
  Fixed all = merged(question, given);
  EXPECT_EQ(all.tp, 8);
  EXPECT_EQ(all.cp, std::nullopt);
  EXPECT_EQ(all.strategy, "ulysses");
  EXPECT_EQ(all.recompute, question.recompute);
  given = {};
  given.balance = Balance{Balance::Kind::head_tail, 1};
  all = merged(question, given);
  EXPECT_EQ(all.cp, 8);
  EXPECT_EQ(all.strategy, std::nullopt);
  EXPECT_EQ(all.balance, given.balance);
}

// What a framework cannot say is still explained, and said.
TEST(Completion, OfWhatAFrameworkCannotSayNamesIt) {
  PlanQuestion question = small_question(8, 65536);
  question.frameworks = {Framework::torchtitan};
  PartialLayout asked = tp_cp(1, 8, 8);
  asked.text += ",strategy=ulysses", asked.given.strategy = "ulysses";
  asked.as_written = parse_parallel_layout(asked.text, 8);
  const Completion found = complete(question, asked);
  ASSERT_EQ(found.kind, Kind::fits);
  EXPECT_THAT(found.lost, ::testing::Contains(HasSubstr("ulysses_degree=8")));
}

}  // namespace
}  // namespace cp::sim

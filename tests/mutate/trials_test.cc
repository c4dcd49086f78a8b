// Who catches a mutant: each judge in turn, and none of them.
#include "sim/fuzz/mutate/trials.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "tests/mutate/damaged_jobs.h"

namespace cp::testing {
namespace {

using sim::apply_mutation;
using sim::attempt;
using sim::make_subject;
using sim::MutantTrial;
using sim::MutationKind;
using sim::Outcome;
using sim::Subject;
using sim::TrialOptions;
using ::testing::AnyOf;
using ::testing::HasSubstr;

// The first mutant of the kind that ends so.
std::optional<MutantTrial> find(Subject& subject, MutationKind kind, bool backward, Outcome outcome,
                                const TrialOptions& options = {}) {
  const std::int64_t places = mutation_places(subject.plans(backward), kind);
  for (std::int64_t place = 0; place < places; ++place) {
    for (const std::uint64_t seed : {0U, 1U, 2U, 3U}) {
      const std::optional<MutantTrial> trial =
          attempt(subject, mutation_of(kind, place, seed, backward), options);
      if (trial->judgement.outcome == outcome) return trial;
    }
  }
  return std::nullopt;
}

TEST(Trials, TheCheckComesFirst) {
  const auto subject = make_subject(ring_case());
  const auto trial = find(*subject, MutationKind::drop_edge, true, Outcome::check);
  ASSERT_TRUE(trial.has_value());
  EXPECT_THAT(trial->judgement.explanation, HasSubstr("no edge orders the two"));
}

// A caller's buffer of another size: no rule about plans knows what the caller has.
TEST(Trials, TheFabricRefusesWhatTheCallersBuffersDoNotFit) {
  const auto subject = make_subject(redistribute_case("S(0)", "R", "a=2", "4"));
  std::vector<Plan> plans = subject->plans(false);
  for (Plan& plan : plans) {
    for (Buffer& buffer : plan.buffers) buffer.dtype = DType::i32;  // consistent, and as large
  }
  EXPECT_EQ(subject->judge(false, plans, {}).outcome, Outcome::equivalent);
  for (Plan& plan : plans) {
    for (Buffer& buffer : plan.buffers) buffer.dtype = DType::f16;
  }
  const sim::MutantJudgement judgement = subject->judge(false, plans, {});
  EXPECT_EQ(judgement.outcome, Outcome::fabric);
  EXPECT_THAT(judgement.explanation, HasSubstr("bytes"));
}

TEST(Trials, TheLedgerKnowsWhichCellsAreWhose) {
  const auto subject = make_subject(ring_case());
  const auto trial = find(*subject, MutationKind::change_mask_rule, false, Outcome::ledger);
  ASSERT_TRUE(trial.has_value());
  EXPECT_THAT(trial->judgement.explanation, HasSubstr("computed query"));
}

TEST(Trials, TheLedgerKnowsWhatTravels) {
  const auto subject = make_subject(redistribute_case("S(0)", "R"));
  std::vector<Plan> plans = subject->plans(false);
  const auto longer = redistribute_case("S(0)", "R");
  for (Plan& plan : plans) {  // the whole collective twice
    plan.segments.push_back(plan.segments.back());
  }
  const sim::MutantJudgement judgement = subject->judge(false, plans, {});
  EXPECT_EQ(judgement.outcome, Outcome::ledger);
  EXPECT_THAT(judgement.explanation, HasSubstr("where the planner counted"));
}

TEST(Trials, TheResultIsWhatOthersCannotKnow) {
  const auto subject = make_subject(redistribute_case("P(sum)", "S(0)"));
  const auto trial = find(*subject, MutationKind::change_reduction_everywhere, false, Outcome::result);
  ASSERT_TRUE(trial.has_value());
  EXPECT_THAT(trial->judgement.explanation, HasSubstr("wrong"));
}

TEST(Trials, UnharmedPlansAreEquivalent) {
  for (const proto::FuzzCase& job :
       {ring_case(), redistribute_case("P(avg)", "S(1)"), redistribute_case("R", "R")}) {
    const auto subject = make_subject(job);
    for (const bool backward : {false, true}) {
      if (subject->plans(backward).empty()) continue;
      EXPECT_EQ(subject->judge(backward, subject->plans(backward), {}).outcome, Outcome::equivalent);
    }
  }
}

// A copy that is done twice.
TEST(Trials, WhatEndsWithTheSameBitsIsEquivalent) {
  const auto subject = make_subject(redistribute_case("S(0)", "S(1)"));
  EXPECT_TRUE(find(*subject, MutationKind::repeat_step, false, Outcome::equivalent).has_value());
}

// Parts of a gradient that are added in another order.
TEST(Trials, AnotherOrderOfASumIsRearranged) {
  proto::FuzzCase job = ring_case();
  job.mutable_attention()->set_mesh("cp=4");
  job.mutable_attention()->set_strategy("all_gather");
  job.mutable_attention()->set_causal(false);
  const auto subject = make_subject(job);
  const auto trial = find(*subject, MutationKind::reorder_steps, true, Outcome::rearranged);
  ASSERT_TRUE(trial.has_value());
  EXPECT_THAT(trial->judgement.explanation, HasSubstr("other bits"));
  // Without the ledger nobody has proved that it is the same sum.
  EXPECT_TRUE(
      find(*subject, MutationKind::reorder_steps, true, Outcome::survivor, {.absent = {Outcome::ledger}})
          .has_value());
}

// With a judge away, what it alone catches survives: the campaign would see a hole.
TEST(Trials, WhatOneJudgeAloneCatchesSurvivesWithoutIt) {
  const auto redistribution = make_subject(redistribute_case("P(sum)", "S(0)"));
  const TrialOptions no_result{.absent = {Outcome::result}};
  const auto wrong =
      find(*redistribution, MutationKind::change_reduction_everywhere, false, Outcome::survivor, no_result);
  ASSERT_TRUE(wrong.has_value());
  EXPECT_THAT(wrong->judgement.explanation, HasSubstr("with the right plans"));

  const auto attention = make_subject(ring_case());
  const TrialOptions neither{.absent = {Outcome::ledger, Outcome::result}};
  EXPECT_TRUE(find(*attention, MutationKind::swap_dk_dv, true, Outcome::survivor, neither).has_value());
  EXPECT_FALSE(find(*attention, MutationKind::swap_dk_dv, true, Outcome::survivor).has_value());
  // A wrong scale of scores that a comparison of the data shows too.
  EXPECT_TRUE(
      find(*attention, MutationKind::change_scale, false, Outcome::result, {.absent = {Outcome::ledger}})
          .has_value());
}

// Those of a seed that happen to agree are told apart by data of another seed: with few values there are many
// such accidents.
TEST(Trials, AccidentsOfTheDataAreSeen) {
  proto::FuzzCase job = redistribute_case("P(max)", "R", "a=2", "1");
  job.mutable_redistribute()->set_dtype(proto::bf16);
  const auto subject = make_subject(job);
  EXPECT_FALSE(
      find(*subject, MutationKind::change_reduction_everywhere, false, Outcome::equivalent).has_value());
}

TEST(Trials, MutationsOfCasesAreAppliedToOthersPlans) {
  const auto subject = make_subject(ring_case());
  std::vector<Plan> plans = subject->plans(true);
  const std::string text = apply_mutation(plans, mutation_of(MutationKind::swap_dk_dv, 0, 0, true));
  EXPECT_THAT(text, HasSubstr("attention_backward"));
  EXPECT_NE(plans, subject->plans(true));
  const auto message = [&](const proto::PlanMutation& mutation) -> std::string {
    try {
      apply_mutation(plans, mutation);
    } catch (const InvalidInput& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(message(mutation_of(MutationKind::change_root, 0, 0)),
              HasSubstr("no place for the mutation change_root"));
  EXPECT_THAT(message(mutation_of(MutationKind::drop_step, -1, 0)), HasSubstr("places count from 0"));
  proto::PlanMutation unknown;
  unknown.set_kind("dropstep");
  EXPECT_THAT(message(unknown), HasSubstr("drop_step"));
}

TEST(Trials, JobsWithoutDataHaveNoSubject) {
  proto::FuzzCase job;
  job.mutable_model()->set_layout("tp=2");
  EXPECT_THROW(make_subject(job), InvalidInput);
  job = ring_case();
  job.mutable_attention()->clear_strategy();
  job.mutable_attention()->set_strategies("ring,ulysses");
  EXPECT_THROW(make_subject(job), InvalidInput);
}

}  // namespace
}  // namespace cp::testing

// The pieces and slots that a search chooses, beside all others.
#include "sim/planner/search/overlap.h"

#include <algorithm>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/units.h"
#include "shared/context_parallel/cores.h"
#include "sim/planner/search/bound.h"
#include "sim/planner/search/evaluate.h"
#include "sim/planner/search/ranking.h"
#include "sim/planner/search/search.h"
#include "tests/planner/questions.h"
#include "tests/support/messages.h"

namespace cp::sim {
namespace {

using testing::small_question;
using testing::training_question;

// Attention is most of its step, and much of it is exposed.
PlanQuestion long_question() {
  PlanQuestion question = small_question(8, 65536);
  question.fixed.pp = 1, question.fixed.micro_batch = 1, question.fixed.loss_chunks = 4;
  question.fixed.order = AxisOrder::tp_cp_dp_pp, question.fixed.sharding = ShardingGroup::dp_shard_cp;
  return question;
}

std::vector<ParallelLayout> members_of(const PlanQuestion& question) {
  const LayoutSpace space(question);
  std::vector<ParallelLayout> all;
  for (const ParallelLayout& family : space.families()) {
    if (refuse(question.model, question.workload, family)) continue;
    for (const ParallelLayout& layout : space.members(family)) all.push_back(layout);
  }
  return all;
}

TEST(LayoutSpace, OverlapsAreLegalAndBeginWithTheLayoutItself) {
  const PlanQuestion question = long_question();
  const LayoutSpace space(question);
  std::set<std::pair<int, int>> found;
  for (const ParallelLayout& layout : members_of(question)) {
    const std::vector<ParallelLayout> choices = space.overlaps(layout);
    ASSERT_FALSE(choices.empty()) << to_string(layout);
    EXPECT_EQ(choices.front(), layout);
    EXPECT_EQ(choices.size() == 1,
              layout.cp == 1 || (!arrives_in_turn(layout.strategy, layout.cp) &&
                                 most_pieces(attention_problem(question.model, question.workload, layout,
                                                               question.model.kinds.front()),
                                             layout.cp, layout.strategy) == 1))
        << to_string(layout);
    std::set<std::string> texts;
    for (const ParallelLayout& choice : choices) {
      EXPECT_EQ(refuse(question.model, question.workload, choice), std::nullopt) << to_string(choice);
      EXPECT_TRUE(texts.insert(to_string(choice)).second) << to_string(choice) << " comes twice";
      EXPECT_EQ(parse_parallel_layout(to_string(choice)), choice) << to_string(choice);
      found.insert({choice.strategy.pieces, choice.strategy.slots});
    }
  }
  EXPECT_THAT(found, ::testing::IsSupersetOf({std::pair{1, 2}, {1, 3}, {2, 2}, {4, 2}, {2, 3}}));
}

TEST(LayoutSpace, PiecesAndSlotsThatAreFixedAreNotChosen) {
  PlanQuestion question = long_question();
  question.fixed.cp = 4, question.fixed.pieces = 2, question.fixed.slots = 3;
  const LayoutSpace space(question);
  int cut = 0, in_turn = 0;
  for (const ParallelLayout& layout : members_of(question)) {
    const bool turns = arrives_in_turn(layout.strategy, layout.cp);
    EXPECT_EQ(layout.strategy.slots, turns ? 3 : 2) << to_string(layout);
    EXPECT_LE(layout.strategy.pieces, 2) << to_string(layout);
    EXPECT_EQ(space.overlaps(layout).size(), 1U) << to_string(layout);
    cut += layout.strategy.pieces == 2 ? 1 : 0, in_turn += turns ? 1 : 0;
  }
  EXPECT_GT(cut, 0);
  EXPECT_GT(in_turn, 0);
}

// Frameworks have no words for them, and other software does not run plans.
TEST(LayoutSpace, OnlyPlansAreCut) {
  PlanQuestion question = long_question();
  question.software.framework = "none";
  const ParallelLayout layout = parse_parallel_layout("cp=8,strategy=all_gather");
  EXPECT_EQ(LayoutSpace(question).overlaps(layout).size(), 1U);
  question.software.framework = "cprun", question.frameworks = {Framework::megatron};
  EXPECT_EQ(LayoutSpace(question).overlaps(layout).size(), 1U);
  question.frameworks.clear();
  EXPECT_GT(LayoutSpace(question).overlaps(layout).size(), 1U);
  question.workload.phase = Phase::decode;
  EXPECT_EQ(LayoutSpace(question).overlaps(layout).size(), 1U);
}

// The promise of the choice, which is made by attention alone: no other choice that fits makes the step
// faster by more than a tie.
TEST(OverlapChoice, NoOtherMakesAStepFasterThanATie) {
  int cut = 0, whole = 0, alone = 0, replayed = 0;
  std::vector<PlanQuestion> questions{long_question(), training_question("llama-3.1-8b", 2, 131072, 16)};
  questions[1].fixed.cp = 8, questions[1].fixed.tp = 1, questions[1].fixed.pp = 1;
  questions[1].fixed.order = AxisOrder::tp_cp_dp_pp, questions[1].fixed.sharding = ShardingGroup::dp_shard_cp;
  questions[1].fixed.recompute = Recompute{Recompute::Kind::selective, 1};
  questions[1].fixed.loss_chunks = 4, questions[1].fixed.micro_batch = 1, questions[1].fixed.dp_shard = 2;
  for (const PlanQuestion& question : questions) {
    const LayoutSpace space(question);
    AttentionTimer timer(question);
    const OverlapChoice overlap(question, space, timer);
    const StepBound bound(question);
    Evaluator evaluator(question);
    const auto fits = [](const ParallelLayout&) { return true; };
    std::size_t number = 0;
    for (const ParallelLayout& layout : members_of(question)) {
      if (layout.cp == 1 || number++ % 3 != 0) continue;
      ParallelLayout chosen;
      double us = kNever;
      const std::vector<ParallelLayout> best = overlap.best_of(layout, bound.ns(layout), {fits, {}});
      for (const ParallelLayout& choice : best) {
        const double of_choice = evaluator.evaluate(choice).step_us;
        if (of_choice < us) us = of_choice, chosen = choice;
      }
      ++(best.size() == 1 ? alone : replayed);
      for (const ParallelLayout& other : space.overlaps(layout)) {
        EXPECT_LE(us, evaluator.evaluate(other).step_us * (1 + kTie))
            << to_string(chosen) << " was chosen, not " << to_string(other);
      }
      ++(chosen.strategy.pieces > 1 ? cut : whole);
    }
  }
  EXPECT_GT(cut, 0);
  EXPECT_GT(whole, 0);
  EXPECT_GT(replayed, 0);
  EXPECT_GT(alone, 3 * replayed) << "a choice by attention alone is to be the rule";
}

// Against searches with each number of pieces and slots: none of them finds a layout that is faster by more
// than a tie, neither of all nor of a class.
TEST(OverlapChoice, TheSearchFindsWhatSearchesWithEachFixedFind) {
  const PlanQuestion question = long_question();
  const PlanAnswer answer = search_layouts(question);
  double least_us = kNever;
  for (const int pieces : {1, 2, 4, 8}) {
    for (const int slots : {2, 3}) {
      PlanQuestion fixed = question;
      fixed.fixed.pieces = pieces, fixed.fixed.slots = slots;
      const PlanAnswer with = search_layouts(fixed);
      least_us = std::min(least_us, with.all.front().step_us);
      for (std::size_t i = 0; i < with.classes.size(); ++i) {
        if (!with.classes[i].candidate) continue;
        ASSERT_TRUE(answer.classes[i].candidate) << with.classes[i].name;
        EXPECT_LE(answer.classes[i].candidate->step_us,
                  with.classes[i].candidate->step_us * (1 + kTie) * (1 + kTie))
            << with.classes[i].name << " " << pieces << " pieces, " << slots << " slots";
      }
    }
  }
  EXPECT_LE(answer.best.front().step_us, least_us * (1 + kTie) * (1 + kTie));
}

// What does not fit whole may fit in pieces.
TEST(OverlapChoice, KeepsToWhatFits) {
  const PlanQuestion question = long_question();
  const LayoutSpace space(question);
  AttentionTimer timer(question);
  const OverlapChoice overlap(question, space, timer);
  const ParallelLayout layout =
      parse_parallel_layout("cp=8,strategy=all_gather,balance=head_tail,loss_chunks=4");
  for (const ParallelLayout& only : space.overlaps(layout)) {
    const auto fits = [&](const ParallelLayout& choice) { return choice == only; };
    EXPECT_THAT(overlap.best_of(layout, 0, {fits, {}}), ::testing::ElementsAre(only));
  }
  EXPECT_THAT(overlap.best_of(layout, 0, {[](const ParallelLayout&) { return false; }, {}}),
              ::testing::ElementsAre(layout));
}

// ---- heads, or latent rows ----

PlanQuestion latent_question() {
  PlanQuestion question = testing::small_question(8, 65536, 8);
  question.model.kv_heads = question.model.q_heads;
  question.model.latent = Latent{384, 128, 16, 64};
  question.fixed.order = AxisOrder::tp_cp_dp_pp;
  return question;
}

TEST(KeysChoice, LatentRowsAreTriedWhereTheyAreFewerBytes) {
  const PlanQuestion question = latent_question();
  const LayoutSpace space(question);
  AttentionTimer timer(question);
  const auto rows_of = [&](const char* text) {
    const auto rows = with_rows(space, timer, parse_parallel_layout(text));
    return rows ? to_string(*rows) : std::string("heads");
  };
  // A row has 144 elements, the keys and values of eight heads 1,024; of two heads 256, and of one 128.
  EXPECT_EQ(rows_of("cp=8,strategy=ring"), "cp=8,strategy=ring,balance=contiguous,keys=latent");
  EXPECT_EQ(rows_of("tp=4,cp=2,strategy=all_gather"),
            "tp=4,cp=2,strategy=all_gather,balance=contiguous,keys=latent");
  EXPECT_EQ(rows_of("tp=2,cp=4,strategy=ulysses"), "heads");
  EXPECT_EQ(rows_of("cp=8,strategy=pass_q"), "heads");
  EXPECT_EQ(rows_of("tp=8"), "heads");
  PlanQuestion other = question;
  other.software.framework = "megatron";
  EXPECT_FALSE(with_rows(LayoutSpace(other), timer, parse_parallel_layout("cp=8,strategy=ring")));
}

TEST(KeysChoice, TheSearchFindsWhatSearchesWithEachFixedFind) {
  PlanQuestion question = latent_question();
  question.fixed.cp = 8;
  const PlanAnswer answer = search_layouts(question);
  double least_us = kNever;
  for (const Strategy::Keys keys : {Strategy::Keys::heads, Strategy::Keys::latent}) {
    PlanQuestion fixed = question;
    fixed.fixed.keys = keys;
    const PlanAnswer with = search_layouts(fixed);
    least_us = std::min(least_us, with.best.front().step_us);
    for (const Candidate& candidate : with.all) EXPECT_EQ(candidate.layout.keys, keys);
  }
  EXPECT_LE(answer.best.front().step_us, least_us * (1 + kTie) * (1 + kTie));
  EXPECT_TRUE(std::any_of(answer.all.begin(), answer.all.end(), [](const Candidate& candidate) {
    return candidate.layout.keys == Strategy::Keys::latent;
  }));
}

// No framework has a word for rows that travel, so what is fixed leaves layouts without cp.
TEST(KeysChoice, FrameworksMoveHeads) {
  PlanQuestion question = latent_question();
  question.frameworks = {Framework::megatron};
  question.fixed.keys = Strategy::Keys::latent;
  for (const ParallelLayout& family : LayoutSpace(question).families()) EXPECT_EQ(family.cp, 1);
  question.fixed.cp = 2;
  EXPECT_THAT(testing::message_of([&] { LayoutSpace(question).families(); }),
              ::testing::HasSubstr("keys=latent: it moves the keys and values of all heads"));
}

TEST(KeysChoice, OfOtherModelsAndOfDecodingTheKeyIsIgnored) {
  for (const bool latent : {false, true}) {
    PlanQuestion question = latent ? latent_question() : testing::small_question(8, 65536, 8);
    question.fixed.keys = Strategy::Keys::latent;
    if (latent) {
      question.workload.phase = Phase::decode;
      question.workload.cached = question.workload.seq_len - 1, question.workload.new_tokens = 1;
    }
    const LayoutSpace space(question);
    for (const ParallelLayout& family : space.families()) {
      for (const ParallelLayout& member : space.members(family))
        EXPECT_EQ(member.keys, Strategy::Keys::heads);
    }
  }
  PlanQuestion question = latent_question();
  question.fixed.keys = Strategy::Keys::latent;
  const LayoutSpace space(question);
  for (const ParallelLayout& family : space.families()) {
    const bool legal = !refuse(question.model, question.workload, space.leanest_member(family));
    for (const ParallelLayout& member : space.members(family)) {
      EXPECT_EQ(member.keys == Strategy::Keys::latent, member.cp > 1);
      if (!legal) continue;
      EXPECT_FALSE(refuse(question.model, question.workload, member)) << to_string(member);
    }
  }
}

}  // namespace
}  // namespace cp::sim

#include "sim/search/layout_space.h"

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

#include "tests/search/questions.h"

namespace cp::sim {
namespace {

std::vector<ParallelLayout> all_of(const PlanQuestion& question) {
  const LayoutSpace space(question);
  std::vector<ParallelLayout> all;
  for (const ParallelLayout& family : space.families()) {
    const std::vector<ParallelLayout> members = space.members(family);
    EXPECT_EQ(space.num_members(family), static_cast<std::int64_t>(members.size()));
    all.insert(all.end(), members.begin(), members.end());
  }
  return all;
}

TEST(LayoutSpace, HoldsEveryFactorisationOnce) {
  const PlanQuestion question = testing::small_question(16);
  std::set<std::vector<int>> degrees;
  std::set<std::string> texts;
  const std::vector<ParallelLayout> all = all_of(question);
  for (const ParallelLayout& layout : all) {
    EXPECT_EQ(layout.world(), 16);
    degrees.insert({layout.dp_replicate, layout.dp_shard, layout.cp, layout.tp, layout.pp});
    EXPECT_TRUE(texts.insert(to_string(layout)).second) << to_string(layout);
  }
  // 16 = 2^4 into five ordered factors: C(4 + 4, 4).
  EXPECT_EQ(degrees.size(), 70u);
}

TEST(LayoutSpace, LegalMembersAreLegalBecauseTheirFamilyIs) {
  PlanQuestion question = testing::small_question(8);
  question.model.experts = Experts{4, 2, 512};
  const LayoutSpace space(question);
  for (const ParallelLayout& family : space.families()) {
    const bool refused = refuse(question.model, question.workload, space.leanest_member(family)).has_value();
    for (const ParallelLayout& layout : space.members(family)) {
      EXPECT_EQ(refuse(question.model, question.workload, layout).has_value(), refused) << to_string(layout);
    }
  }
}

TEST(LayoutSpace, OrdersThatChangeNoGroupCountOnce) {
  PlanQuestion question = testing::small_question(8);
  question.fixed.cp = 8;
  EXPECT_EQ(LayoutSpace(question).families().size(), 2u * 4);  // two shardings, four micro-batches
}

TEST(LayoutSpace, TheStrategiesOfTheProjectAreAllThere) {
  PlanQuestion question = testing::small_question(8);
  question.fixed.cp = 8;
  std::set<std::string> strategies;
  for (const ParallelLayout& layout : all_of(question)) strategies.insert(to_string(layout.strategy, 8));
  for (const char* wanted :
       {"ulysses(8) contiguous", "all_gather contiguous", "all_gather head_tail_exchange", "ring head_tail",
        "ring striped:1", "ring contiguous", "ring(gathered) head_tail", "double_ring(2) head_tail",
        "need_only contiguous", "pass_q head_tail", "ulysses(2) x ring head_tail",
        "ring x ulysses(2) head_tail", "ulysses(4) x all_gather contiguous"}) {
    EXPECT_TRUE(strategies.contains(wanted)) << wanted;
  }
}

}  // namespace
}  // namespace cp::sim

#include "sim/planner/search/layout_space.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "shared/base/index.h"
#include "tests/planner/questions.h"

namespace cp::sim {
namespace {

std::vector<ParallelLayout> layouts_of(const PlanQuestion& question) {
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
  const std::vector<ParallelLayout> all = layouts_of(question);
  for (const ParallelLayout& layout : all) {
    EXPECT_EQ(layout.world(), 16);
    degrees.insert({layout.dp_replicate, layout.dp_shard, layout.cp, layout.tp, layout.pp});
    EXPECT_TRUE(texts.insert(to_string(layout)).second) << to_string(layout);
  }
  // 16 = 2^4 into five ordered factors: C(4 + 4, 4).
  EXPECT_EQ(degrees.size(), 70u);
}

// The first strategy, a ring, is not legal with a ring for the layers with windows alone, which says nothing.
TEST(LayoutSpace, LegalMembersAreLegalBecauseTheirFamilyIs) {
  for (const auto core : {std::optional<Core>(), std::optional(Core::ring), std::optional(Core::need_only),
                          std::optional(Core::all_gather)}) {
    PlanQuestion question = testing::small_question(8);
    question.model.experts = Experts{4, 2, 512};
    if (core) {
      std::vector<LayerKind> layers(idx(question.model.layers));
      for (std::size_t layer = 0; layer < layers.size(); layer += 2) layers[layer].window = 32;
      set_layers(question.model, layers);
      question.fixed.window_core = core;
    }
    const LayoutSpace space(question);
    bool has_core = false;
    for (const ParallelLayout& family : space.families()) {
      const bool refused =
          refuse(question.model, question.workload, space.leanest_member(family)).has_value();
      for (const ParallelLayout& layout : space.members(family)) {
        const auto refusal = refuse(question.model, question.workload, layout);
        EXPECT_EQ(refusal.has_value(), refused) << to_string(layout) << (refusal ? refusal->reason : "");
        has_core = has_core || layout.window_core.has_value();
      }
    }
    EXPECT_EQ(has_core, core.has_value());
  }
}

TEST(LayoutSpace, OrdersThatChangeNoGroupCountOnce) {
  PlanQuestion question = testing::small_question(8);
  question.fixed.cp = 8;
  EXPECT_EQ(LayoutSpace(question).families().size(), 2u * 4);  // two shardings, four micro-batches
  // Over dp_shard x cp parameters are sharded, or gradients, or states; over dp_shard alone nothing is.
  EXPECT_EQ(LayoutSpace(question, true).families().size(), (3u + 1) * 4);
}

TEST(LayoutSpace, TheStrategiesOfTheProjectAreAllThere) {
  PlanQuestion question = testing::small_question(8);
  question.fixed.cp = 8;
  std::set<std::string> strategies;
  for (const ParallelLayout& layout : layouts_of(question)) strategies.insert(to_string(layout.strategy, 8));
  for (const char* wanted :
       {"ulysses(8) contiguous", "all_gather contiguous", "all_gather head_tail_exchange", "ring head_tail",
        "ring striped:1", "ring contiguous", "ring(gathered) head_tail", "double_ring(2) head_tail",
        "need_only contiguous", "pass_q head_tail", "ulysses(2) x ring head_tail",
        "ring x ulysses(2) head_tail", "ulysses(4) x all_gather contiguous"}) {
    EXPECT_TRUE(strategies.contains(wanted)) << wanted;
  }
}

// Ulysses on all ranks leaves neither core nor balance anything to do.
Strategy normal(Strategy strategy, int cp) {
  if (strategy.ulysses_degree != cp) return strategy;
  Strategy whole;
  whole.ulysses_degree = cp;
  return whole;
}

std::vector<Strategy> strategies_of(const PlanQuestion& question, int cp) {
  std::vector<Strategy> all;
  for (const ParallelLayout& layout : layouts_of(question)) all.push_back(normal(layout.strategy, cp));
  return all;
}

// Legal for attention's heads, which tp shares, and not what the header leaves out.
TEST(LayoutSpace, StandardStrategiesAreAllThereButOne) {
  for (const auto& degrees : {std::pair{1, 2}, {1, 4}, {2, 4}, {1, 6}, {1, 8}, {4, 4}, {1, 16}}) {
    const int tp = degrees.first, cp = degrees.second;  // clang 14 takes no bindings into lambdas
    PlanQuestion question = testing::small_question(cp == 6 ? 12 : 16);
    question.fixed.tp = tp, question.fixed.cp = cp, question.fixed.pp = 1, question.fixed.micro_batch = 1;
    question.fixed.recompute = Recompute{}, question.fixed.loss_chunks = 1;
    const std::vector<Strategy> space = strategies_of(question, cp);
    ParallelLayout layout;
    layout.tp = tp, layout.cp = cp;
    const AttentionProblem problem =
        attention_problem(question.model, question.workload, layout, question.model.kinds.front());
    const auto holds = [&](const Strategy& strategy) {
      return std::find(space.begin(), space.end(), normal(strategy, cp)) != space.end();
    };
    for (const Strategy& strategy : standard_strategies(problem, cp)) {
      if (refuse(problem, cp, strategy)) continue;
      EXPECT_EQ(holds(strategy), strategy.balance.kind != Balance::Kind::cost) << to_string(strategy, cp);
    }
    // Every name, with one balance at least.
    for (const std::string& name : strategy_names()) {
      Strategy strategy = named_strategy({name, {}, {}}, problem, cp);
      if (refuse(problem, cp, strategy)) continue;
      bool any = false;
      for (const Balance::Kind kind : {Balance::Kind::contiguous, Balance::Kind::head_tail}) {
        strategy.balance.kind = kind;
        any = any || holds(strategy);
      }
      EXPECT_TRUE(any) << name << " on " << cp;
    }
  }
}

TEST(LayoutSpace, WhatIsLeftOutCanBeAskedFor) {
  PlanQuestion question = testing::small_question(8);
  question.fixed.cp = 8;
  question.fixed.strategy = "need_only", question.fixed.balance = parse_balance("cost:32");
  for (const ParallelLayout& layout : layouts_of(question)) {
    EXPECT_EQ(to_string(layout.strategy, 8), "need_only cost:32");
    EXPECT_EQ(refuse(question.model, question.workload, layout), std::nullopt) << to_string(layout);
  }
}

// A degree that no number of ranks has leaves those without context parallelism.
TEST(LayoutSpace, DegreesThatNoRanksHaveLeaveNoFamilyWithoutMembers) {
  PlanQuestion question = testing::small_question(8);
  question.fixed.ulysses_degree = 3;
  for (const ParallelLayout& layout : layouts_of(question)) EXPECT_EQ(layout.cp, 1);
  question.fixed = {};
  question.fixed.inner_ring = 2;
  for (const ParallelLayout& layout : layouts_of(question)) {
    if (layout.cp > 1) {
      EXPECT_EQ(layout.strategy.inner_ring, 2) << to_string(layout);
    }
  }
}

TEST(LayoutSpace, AFixedAxisOrderAndRotationAreKept) {
  PlanQuestion question = testing::small_question(8);
  question.fixed.cp = 8, question.fixed.strategy = "ulysses_ring";
  question.fixed.ulysses_inner = false, question.fixed.rotation = Strategy::Rotation::all_gather;
  for (const ParallelLayout& layout : layouts_of(question)) {
    EXPECT_FALSE(layout.strategy.ulysses_inner) << to_string(layout);
    EXPECT_EQ(layout.strategy.rotation, Strategy::Rotation::all_gather) << to_string(layout);
  }
}

TEST(LayoutSpace, StrategiesRunAsTheSoftwareRunsThem) {
  PlanQuestion question = testing::small_question(8);
  question.fixed.cp = 8;
  question.software.send_empty = true, question.software.dkv_f32 = false;
  for (const ParallelLayout& layout : layouts_of(question)) {
    EXPECT_TRUE(layout.strategy.send_empty && layout.strategy.input_dtype_gradients) << to_string(layout);
  }
}

}  // namespace
}  // namespace cp::sim

// Every row of the table of cores (shared/context_parallel/cores.h) is whole, and who reads it finds what it
// needs: the names, the search, its bound, memory, the frameworks, emission and the fuzzer. What a core
// computes is tests/context_parallel's.
#include "shared/context_parallel/cores.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/text.h"
#include "shared/context_parallel/attention_plan.h"
#include "sim/fuzz/features.h"
#include "sim/planner/emit/emit.h"
#include "sim/planner/search/layout_space.h"
#include "sim/proof/ledger/expected_traffic.h"
#include "tests/planner/questions.h"

namespace cp::sim {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
using Place = CoreVariant::Place;

constexpr int kRing = 4;

// On kRing ranks; a hybrid between pairs.
Strategy strategy_of(const CoreFacts& core, const CoreVariant& variant) {
  Strategy strategy;
  strategy.core = core.core, strategy.balance = variant.balance, strategy.rotation = variant.rotation;
  strategy.ulysses_inner = variant.ulysses_inner;
  if (variant.place == Place::hybrid) strategy.ulysses_degree = 2;
  if (variant.place == Place::inner_rings) strategy.inner_ring = 2;
  return strategy;
}

AttentionRequest request_of(const Strategy& strategy) {
  AttentionRequest request;
  request.problem.q_len = request.problem.kv_len = 256;
  request.problem.q_heads = request.problem.kv_heads = 4;
  request.problem.head_dim = request.problem.v_head_dim = 16;
  request.problem.dtype = DType::bf16, request.problem.causal = true;
  request.ranks = {0, 1, 2, 3};
  request.strategy = strategy, request.keep_for_backward = true;
  return request;
}

ParallelLayout layout_with(const Strategy& strategy) {
  ParallelLayout layout;
  layout.cp = kRing, layout.strategy = strategy;
  return layout;
}

// Of the ring alone: what memory and the bound say of it apart from Ulysses, which comes before.
std::vector<Strategy> strategies_of_ring(const CoreFacts& core) {
  std::vector<Strategy> all;
  for (const auto& variants : {core.compared, core.searched}) {
    for (const CoreVariant& variant : variants) {
      if (variant.place != Place::hybrid) all.push_back(strategy_of(core, variant));
    }
  }
  return all;
}

bool has(std::span<const CoreVariant> variants, bool (*is)(const CoreVariant&)) {
  return std::any_of(variants.begin(), variants.end(), is);
}

TEST(Cores, EveryRowHasEveryEntry) {
  std::set<std::string_view> names;
  for (const CoreFacts* core : all_cores()) {
    EXPECT_EQ(&facts(core->core), core) << core->name;
    EXPECT_TRUE(names.insert(core->name).second) << core->name;
    EXPECT_EQ(name(core->core), core->name);
    EXPECT_NE(core->forward, nullptr) << core->name;
    EXPECT_NE(core->backward, nullptr) << core->name;
    EXPECT_NE(core->least_traffic, nullptr) << core->name;
    EXPECT_THAT(core->compared, Not(IsEmpty())) << core->name;
    EXPECT_THAT(core->searched, Not(IsEmpty())) << core->name;
    const std::set<Balance::Kind> balances(core->balances.begin(), core->balances.end());
    EXPECT_EQ(balances.size(), core->balances.size()) << core->name << ": one comes twice";
    EXPECT_FALSE(balances.empty()) << core->name;
    for (const auto& variants : {core->compared, core->searched}) {
      EXPECT_EQ(has(variants, [](const CoreVariant& v) { return v.place == Place::inner_rings; }),
                !core->name_of_inner_rings.empty())
          << core->name;
      EXPECT_EQ(
          has(variants, [](const CoreVariant& v) { return v.rotation != Strategy::Rotation::exchange; }),
          core->has_rotation)
          << core->name;
    }
  }
}

TEST(Cores, EachHasANameThatTextsBeginWith) {
  const AttentionProblem problem = request_of({}).problem;
  for (const CoreFacts* core : all_cores()) {
    EXPECT_THAT(strategy_names(), Contains(std::string(core->name)));
    const Strategy named = named_strategy({std::string(core->name), {}, {}}, problem, kRing);
    EXPECT_EQ(named.core, core->core);
    EXPECT_THAT(to_string(named), StartsWith(str(core->name, " ")));
    if (core->name_of_inner_rings.empty()) continue;
    const Strategy rings = named_strategy({std::string(core->name_of_inner_rings), {}, {}}, problem, kRing);
    EXPECT_EQ(rings.core, core->core);
    EXPECT_THAT(to_string(rings), StartsWith(str(core->name_of_inner_rings, "(2) ")));
  }
}

TEST(Cores, EachIsSearchedInEveryVariantOfItsRow) {
  PlanQuestion question = testing::small_question(kRing);
  question.fixed.cp = kRing;
  const LayoutSpace space(question);
  std::set<std::string> found;
  for (const ParallelLayout& family : space.families()) {
    for (const ParallelLayout& layout : space.members(family))
      found.insert(to_string(layout.strategy, kRing));
  }
  for (const CoreFacts* core : all_cores()) {
    for (const CoreVariant& variant : core->searched) {
      EXPECT_TRUE(found.contains(to_string(strategy_of(*core, variant), kRing)))
          << to_string(strategy_of(*core, variant), kRing);
    }
  }
}

TEST(Cores, OneThatAQuestionFixesIsTriedWithTheBalancesOfItsRow) {
  for (const CoreFacts* core : all_cores()) {
    PlanQuestion question = testing::small_question(kRing);
    question.fixed.cp = kRing, question.fixed.strategy = std::string(core->name);
    const LayoutSpace space(question);
    std::set<Balance::Kind> found;
    for (const ParallelLayout& layout : space.members(space.families().front())) {
      EXPECT_EQ(layout.strategy.core, core->core);
      found.insert(layout.strategy.balance.kind);
    }
    EXPECT_EQ(found, std::set<Balance::Kind>(core->balances.begin(), core->balances.end())) << core->name;
  }
}

// Against what each rank must receive, which is counted apart from the rows, by the index sets alone. A bound
// above it would let the search leave out the best.
TEST(Cores, BoundsClaimNoMoreThanArrives) {
  for (const CoreFacts* core : all_cores()) {
    for (const Strategy& strategy : strategies_of_ring(*core)) {
      const AttentionRequest request = request_of(strategy);
      const double of_rank = 256 / kRing * 4 * 16 * 2;
      const LeastTraffic claimed = core->least_traffic(strategy, kRing, of_rank, 2 * of_rank);
      EXPECT_TRUE(claimed.gathered_bytes == 0 || claimed.hops == 0) << to_string(strategy);
      EXPECT_GE(claimed.gathered_bytes, 0) << to_string(strategy);
      for (const AttentionPass pass : {AttentionPass::forward, AttentionPass::backward}) {
        std::vector<double> received;
        for (const Received& rank : expected_traffic(request, pass, false))
          received.push_back(static_cast<double>(rank.payload()));
        const auto [least, most] = std::minmax_element(received.begin(), received.end());
        // What is gathered comes to everybody; what hops, to the one that is last.
        EXPECT_GE(*least, (kRing - 1) * claimed.gathered_bytes) << to_string(strategy);
        EXPECT_GE(*most, claimed.hops * claimed.hop_bytes) << to_string(strategy);
      }
    }
  }
}

TEST(Cores, ClaimedMemoryGrowsWithWhatIsMovedAndWithABackwardPass) {
  int claims = 0;
  for (const CoreFacts* core : all_cores()) {
    if (core->least_workspace_bytes == nullptr) continue;
    ++claims;
    for (const Strategy& strategy : strategies_of_ring(*core)) {
      const auto bytes = [&](const CoreSizes& sizes) { return core->least_workspace_bytes(strategy, sizes); };
      const std::int64_t once = bytes({kRing, 500, 2, false});
      EXPECT_GT(once, 0) << to_string(strategy);
      EXPECT_EQ(bytes({kRing, 1000, 2, false}), 2 * once) << to_string(strategy);
      EXPECT_GT(bytes({kRing, 500, 2, true}), once) << to_string(strategy);
      EXPECT_GE(bytes({2 * kRing, 500, 2, false}), once) << to_string(strategy);
    }
  }
  EXPECT_GT(claims, 0);
}

// A framework that has words for some cores runs one of these instead of each other one, and says so.
TEST(Cores, EachFrameworkHasAWordForEachOrSaysWhatItRunsInstead) {
  const PlanQuestion question = testing::small_question(kRing);
  int with_words = 0;
  for (const FrameworkFacts& framework : all_frameworks()) {
    if (framework.cores.empty()) continue;
    ++with_words;
    for (const CoreFacts* core : all_cores()) {
      const auto own = std::find_if(framework.cores.begin(), framework.cores.end(),
                                    [&](const CoreWord& known) { return known.core == core->core; });
      const bool known = own != framework.cores.end();
      ASSERT_TRUE(known || core->instead) << framework.name << " has no word for " << core->name
                                          << ", and its row says nothing of what is like it";
      const std::string word(word_of(framework.framework, core->core));
      EXPECT_THAT(word, Not(IsEmpty()));
      Strategy strategy;
      strategy.core = core->core, strategy.balance = parse_balance("head_tail");
      const FrameworkCase said{question.model, question.workload, layout_with(strategy)};
      const Expressed expressed = express(framework.framework, said);
      EXPECT_EQ(expressed.run.layout.strategy.core, known ? core->core : core->instead->core);
      if (known) {
        EXPECT_EQ(word, own->word);
        EXPECT_THAT(expressed.lost, Not(Contains(StartsWith(str(core->name, ":")))));
      } else {
        EXPECT_THAT(expressed.lost, Contains(str(core->name, ": ", word, " ", core->instead->how)));
      }
      const Emitted emitted =
          emit(framework.framework, question.model, question.workload, said.layout, {"small", 1, kRing});
      EXPECT_THAT(emitted.text, HasSubstr(word)) << framework.name;
    }
  }
  EXPECT_GE(with_words, 2);
}

TEST(Cores, EachIsHandedToCprunByItsName) {
  const PlanQuestion question = testing::small_question(kRing);
  for (const CoreFacts* core : all_cores()) {
    for (const CoreVariant& variant : core->searched) {
      const Strategy strategy = strategy_of(*core, variant);
      const Emitted emitted = emit(Framework::attention, question.model, question.workload,
                                   layout_with(strategy), {"small", 1, kRing});
      const bool rings = variant.place == Place::inner_rings;
      EXPECT_THAT(emitted.text,
                  HasSubstr(str("strategy: \"", rings ? core->name_of_inner_rings : core->name, "\"")))
          << to_string(strategy);
    }
  }
}

// Names are drawn by weight in sim/fuzz/draw_attention.cc; what is counted as covered has all of them.
TEST(Cores, TheFuzzerKnowsEveryName) {
  for (const FeatureGroup& group : feature_groups(proto::FuzzCase::kAttention)) {
    if (group.name != "strategy") continue;
    for (const std::string& name : strategy_names()) EXPECT_THAT(group.values, Contains(name));
    EXPECT_EQ(group.values.size(), strategy_names().size());
    return;
  }
  FAIL() << "no group of features is named strategy";
}

}  // namespace
}  // namespace cp::sim

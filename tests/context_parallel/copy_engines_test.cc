// Transfers by copy engines: results, ledgers and bounds are those of every plan; which groups move what, and
// what is refused.
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/text.h"
#include "shared/plan/check.h"
#include "tests/context_parallel/problem_generator.h"
#include "tests/context_parallel/run_findings.h"

namespace cp::testing {
namespace {

using ::testing::HasSubstr;

constexpr auto kCopyEngine = Strategy::Transfers::copy_engine;

AttentionProblem even_problem() {
  AttentionProblem problem;
  problem.q_len = problem.kv_len = 48;
  problem.batch = 2, problem.q_heads = 8, problem.kv_heads = 4, problem.head_dim = 8;
  problem.causal = true;
  return problem;
}

template <class Visit>
void for_each_legal(const AttentionProblem& problem, int cp, const Target& target, const Visit& visit) {
  for (const std::string& name : strategy_names()) {
    for (const char* balance : {"contiguous", "head_tail", "striped"}) {
      for (const auto rotation : {Strategy::Rotation::exchange, Strategy::Rotation::all_gather}) {
        for (const int more : {1, 2}) {
          Strategy strategy = named_strategy({name, {}, {}}, problem, cp);
          strategy.balance = parse_balance(balance), strategy.rotation = rotation;
          strategy.transfers = kCopyEngine;
          strategy.slots = 1 + more, strategy.pieces = most_pieces(problem, cp, strategy) > 1 ? more : 1;
          if (!refuse(problem, cp, strategy, target)) visit(strategy);
        }
      }
    }
  }
}

TEST(CopyEngineTransfers, EqualOneDevice) {
  int cases = 0;
  std::set<std::string> names;
  for (const TensorFormat format : {TensorFormat::bshd, TensorFormat::bnsd}) {
    AttentionProblem problem = even_problem();
    problem.format = format;
    for_each_legal(problem, 4, host_target(), [&](const Strategy& strategy) {
      ++cases;
      names.insert(to_string(strategy, 4).substr(0, to_string(strategy, 4).find(' ')));
      EXPECT_EQ(findings_of(problem, 4, strategy), "") << to_string(strategy);
    });
  }
  EXPECT_GT(cases, 60);
  for (const char* name :
       {"ring", "ring(gathered)", "double_ring(2)", "all_gather", "ulysses(4)", "ulysses(2)"})
    EXPECT_TRUE(names.contains(name)) << name;
}

TEST(CopyEngineTransfers, FusedAttentionEqualsOneDevice) {
  AttentionProblem problem = even_problem();
  problem.dtype = DType::bf16;
  for_each_legal(problem, 4, gpu_target("sm90"), [&](const Strategy& strategy) {
    EXPECT_EQ(findings_of(problem, 4, strategy, gpu_target("sm90")), "") << to_string(strategy);
  });
}

// The blocks of a ring may be unequal: each slot is as large as the largest.
TEST(CopyEngineTransfers, RingsTakeAnyLength) {
  AttentionProblem problem = even_problem();
  problem.q_len = problem.kv_len = 41;
  for (const char* name : {"ring", "double_ring"}) {
    for (const char* balance : {"contiguous", "head_tail", "cost:4"}) {
      Strategy strategy = named_strategy({name, {}, {}}, problem, 4);
      strategy.transfers = kCopyEngine, strategy.balance = parse_balance(balance);
      ASSERT_FALSE(refuse(problem, 4, strategy)) << to_string(strategy);
      EXPECT_EQ(findings_of(problem, 4, strategy), "") << to_string(strategy);
    }
  }
}

// What only moves goes through groups with copy engines, sums through others, and no group is in a plan for
// nothing.
TEST(CopyEngineTransfers, OnlyMovesGoByThem) {
  for (const AttentionPass pass : {AttentionPass::forward, AttentionPass::backward}) {
    for_each_legal(even_problem(), 4, host_target(), [&](const Strategy& strategy) {
      const std::vector<Plan> plans =
          attention_plans({even_problem(), first_ranks(4), strategy, true, {}}, pass);
      EXPECT_NO_THROW(check(plans)) << to_string(strategy);
      for (const Plan& plan : plans) {
        std::set<GroupId> used;
        for (const StepRef& ref : steps_of(plan)) {
          const Collective* collective = std::get_if<Collective>(&ref.step->work);
          if (collective == nullptr) continue;
          const GroupId group = group_of(*collective);
          used.insert(group);
          const std::string& label = ref.step->label;
          const bool sums = label.starts_with("dk, dv") &&
                            (!label.ends_with("rows") || std::holds_alternative<Exchange>(*collective));
          EXPECT_EQ(plan.groups[static_cast<std::size_t>(group)].copy_engine, !sums)
              << label << " of " << to_string(strategy);
        }
        EXPECT_EQ(used.size(), plan.groups.size()) << to_string(strategy);
      }
    });
  }
}

// Both worlds of a user's scenario have the same plans, but for the choice.
TEST(CopyEngineTransfers, TheChoiceIsPartOfNamesAndDigests) {
  Strategy ring, engines;
  engines.transfers = kCopyEngine;
  EXPECT_EQ(to_string(engines), "ring contiguous, copy engines");
  Hasher a, b;
  EXPECT_NE(hash(a, ring).digest(), hash(b, engines).digest());
}

TEST(CopyEngineTransfers, RefusalsSayWhatWorks) {
  const auto reason = [](const AttentionProblem& problem, int cp, Strategy strategy,
                         const Target& target = host_target()) {
    strategy.transfers = kCopyEngine;
    const auto refusal = refuse(problem, cp, strategy, target);
    if (!refusal) return std::string();
    EXPECT_EQ(refusal->strategy.transfers, Strategy::Transfers::sm);
    return refusal->reason;
  };
  AttentionProblem problem = even_problem();
  EXPECT_EQ(reason(problem, 1, {}), "transfers=copy_engine moves nothing on a single rank; use transfers=sm");
  for (const Core core : {Core::need_only, Core::pass_q}) {
    Strategy strategy;
    strategy.core = core;
    EXPECT_THAT(reason(problem, 4, strategy), HasSubstr("in unequal sizes; use ring, all_gather or ulysses"));
  }
  Strategy exchanged;
  exchanged.balance = parse_balance("head_tail_exchange");
  EXPECT_THAT(reason(problem, 4, exchanged), HasSubstr("cannot serve head_tail_exchange"));
  Target old = gpu_target("sm90");
  old.sm_only = {"exchange"};
  EXPECT_THAT(reason(problem, 4, {}, old),
              HasSubstr("needs exchange by copy engines, which the library of target sm90 has not"));
  EXPECT_THAT(reason(problem, 4, {}, old), HasSubstr("it has all_gather and all_to_all: use ulysses"));
  EXPECT_EQ(reason(problem, 4, whole_ulysses(4), old), "");
  old.sm_only = {"exchange", "all_gather", "all_to_all"};
  EXPECT_THAT(reason(problem, 4, whole_ulysses(4), old), HasSubstr("needs all_to_all by copy engines"));
  problem.q_len = problem.kv_len = 41;
  EXPECT_EQ(
      reason(problem, 4, whole_ulysses(4)),
      "transfers=copy_engine needs equal blocks on all ranks, and they hold 10 or 11 query rows each; pad "
      "the sequence to a multiple of 8, or balance it otherwise; use transfers=sm");
  problem = even_problem();
  problem.q_heads = problem.kv_heads = 6;
  EXPECT_THAT(reason(problem, 4, whole_ulysses(4)), HasSubstr("use a ulysses_degree that divides q_heads=6"));
  // Both ranks have three query heads of two kv heads, and cut them into two and one, or one and two.
  problem.kv_heads = 3;
  Strategy in_pieces = whole_ulysses(2);
  EXPECT_EQ(reason(problem, 2, in_pieces), "");
  in_pieces.pieces = 2;
  EXPECT_THAT(reason(problem, 2, in_pieces),
              HasSubstr("they hold 1 or 2 query heads of piece 0 each; use pieces=1"));
}

}  // namespace
}  // namespace cp::testing

// What lets transfers run beside attention: pieces of heads, and a third slot of a ring. Results, ledgers and
// bounds are those of every plan; what a step waits for is read from the plan.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "shared/base/text.h"
#include "shared/plan/fused_attention.h"
#include "tests/context_parallel/problem_generator.h"
#include "tests/context_parallel/run_findings.h"

namespace cp::testing {
namespace {

AttentionProblem odd_problem() {
  AttentionProblem problem;
  problem.q_len = problem.kv_len = 41;
  problem.batch = 2, problem.q_heads = 14, problem.kv_heads = 7, problem.head_dim = 8;
  problem.causal = true;
  return problem;
}

// All strategies for which something comes at once, with every balance that moves rows differently.
template <class Visit>
void for_each_in_pieces(const AttentionProblem& problem, int cp, const Visit& visit) {
  for (const std::string& name : strategy_names()) {
    for (const char* balance : {"contiguous", "head_tail", "head_tail_exchange"}) {
      for (const auto rotation : {Strategy::Rotation::exchange, Strategy::Rotation::all_gather}) {
        Strategy strategy = named_strategy({name, {}, {}}, problem, cp);
        strategy.balance = parse_balance(balance), strategy.rotation = rotation;
        for (const int pieces : {2, 3}) {
          strategy.pieces = pieces;
          if (!refuse(problem, cp, strategy)) visit(strategy);
        }
      }
    }
  }
}

TEST(Overlap, AttentionInPiecesEqualsOneDevice) {
  int cases = 0;
  for (const bool packed : {false, true}) {
    AttentionProblem problem = odd_problem();
    if (packed) problem.cu_seqlens = {0, 5, 5, 23, 41};
    for (const TensorFormat format : {TensorFormat::bshd, TensorFormat::bnsd}) {
      problem.format = format;
      for_each_in_pieces(problem, 4, [&](const Strategy& strategy) {
        ++cases;
        EXPECT_EQ(findings_of(problem, 4, strategy), "")
            << to_string(problem) << " by " << to_string(strategy);
      });
    }
  }
  EXPECT_GT(cases, 50);
}

// Query groups that the Ulysses ranks cut, so that kv heads are shared and their gradients are sums.
TEST(Overlap, PiecesOfSharedKvHeadsAddUpAtHome) {
  AttentionProblem problem = odd_problem();
  problem.q_heads = 15, problem.kv_heads = 5;
  for (const char* name : {"ulysses", "ulysses_ring", "ulysses_all_gather"}) {
    Strategy strategy = named_strategy({name, 2, {}}, problem, name == std::string_view("ulysses") ? 2 : 4);
    strategy.pieces = 2;
    const int cp = name == std::string_view("ulysses") ? 2 : 4;
    ASSERT_FALSE(refuse(problem, cp, strategy)) << to_string(strategy);
    EXPECT_EQ(findings_of(problem, cp, strategy), "") << to_string(strategy);
  }
}

TEST(Overlap, FusedAttentionInPiecesEqualsOneDevice) {
  AttentionProblem problem = odd_problem();
  problem.dtype = DType::bf16, problem.q_heads = 8, problem.kv_heads = 4;
  for_each_in_pieces(problem, 4, [&](const Strategy& strategy) {
    EXPECT_EQ(findings_of(problem, 4, strategy, gpu_target("sm90")), "") << to_string(strategy);
  });
}

TEST(Overlap, ThreeSlotsEqualOneDevice) {
  for (const char* name : {"ring", "double_ring", "pass_q", "ulysses_ring"}) {
    const AttentionProblem problem = odd_problem();
    Strategy strategy = named_strategy({name, {}, {}}, problem, 6);
    strategy.slots = 3;
    EXPECT_EQ(findings_of(problem, 6, strategy), "") << to_string(strategy);
  }
}

TEST(Overlap, RefusalsSayWhatWorks) {
  const AttentionProblem problem = odd_problem();
  Strategy ring;
  ring.pieces = 2;
  ASSERT_TRUE(refuse(problem, 4, ring));
  EXPECT_EQ(
      refuse(problem, 4, ring)->reason,
      "pieces=2 cuts what comes at once, and here nothing does; use 1, or Ulysses or a core that gathers");
  EXPECT_EQ(refuse(problem, 4, ring)->strategy.pieces, 1);
  Strategy ulysses = whole_ulysses(4);
  ulysses.pieces = 5;
  ASSERT_TRUE(refuse(problem, 4, ulysses));
  EXPECT_EQ(refuse(problem, 4, ulysses)->reason,
            "pieces=5 needs a kv head for each, and some rank computes on 2; use 2");
  Strategy slots;
  slots.slots = 4;
  ASSERT_TRUE(refuse(problem, 4, slots));
  EXPECT_EQ(refuse(problem, 4, slots)->reason, "slots=4: blocks arrive in turn in 2 or 3 places; use 3");
}

// ---- what waits for what ----

// By step: whether it runs behind another, by the order of streams and the edges.
bool is_behind(const Plan& plan, StepId later, StepId earlier) {
  const std::vector<StepRef> steps = steps_of(plan);
  std::vector<bool> behind(steps.size());
  behind[static_cast<std::size_t>(earlier)] = true;
  for (std::size_t i = static_cast<std::size_t>(earlier) + 1; i < steps.size(); ++i) {
    for (std::size_t j = static_cast<std::size_t>(earlier); j < i; ++j) {
      if (behind[j] && steps[j].step->stream == steps[i].step->stream) behind[i] = true;
    }
    for (const Edge& edge : steps[i].step->after) {
      if (behind[static_cast<std::size_t>(edge.step)]) behind[i] = true;
    }
  }
  return behind[static_cast<std::size_t>(later)];
}

template <class Kind>
std::vector<StepId> steps_with(const Plan& plan, std::string_view label) {
  std::vector<StepId> found;
  for (const StepRef& ref : steps_of(plan)) {
    if (ref.step->label == label && std::holds_alternative<Kind>(ref.step->work)) found.push_back(ref.id);
  }
  return found;
}

TEST(Overlap, ATransferWaitsForNoAttentionOfTheStepBefore) {
  AttentionProblem problem = odd_problem();
  problem.causal = false, problem.q_len = problem.kv_len = 60;
  for (const int slots : {2, 3}) {
    Strategy ring;
    ring.slots = slots;
    for (const Plan& plan :
         attention_plans({problem, first_ranks(6), ring, true, {}}, AttentionPass::forward)) {
      // The transfer of step 4 fills the place of step 2, or of step 1.
      const StepId moves = steps_with<Collective>(plan, "k, v of step 4").front();
      const StepId two = steps_with<Kernel>(plan, "attention of step 2").front(),
                   one = steps_with<Kernel>(plan, "attention of step 1").front();
      EXPECT_EQ(is_behind(plan, moves, two), slots == 2) << slots << " slots";
      EXPECT_TRUE(is_behind(plan, moves, one)) << slots << " slots";
    }
  }
}

TEST(Overlap, ThreeSlotsTakeOneBlockMore) {
  AttentionProblem problem = odd_problem();
  problem.causal = false, problem.q_len = problem.kv_len = 768;
  Strategy ring;
  const auto arena = [&](int slots) {
    ring.slots = slots;
    return attention_plan({problem, first_ranks(6), ring, true, {}}, AttentionPass::forward, 0).arena_bytes;
  };
  const std::int64_t block =
      problem.batch * 128 * problem.kv_heads * (problem.head_dim + problem.v_head_dim) * 4;
  EXPECT_EQ(arena(3) - arena(2), block);
}

TEST(Overlap, PiecesTravelBesideAttention) {
  AttentionProblem problem = odd_problem();
  problem.q_len = problem.kv_len = 64, problem.batch = 1, problem.q_heads = problem.kv_heads = 8;
  for (const bool ulysses : {true, false}) {
    Strategy strategy = ulysses ? whole_ulysses(4) : Strategy{};
    if (!ulysses) strategy.core = Core::all_gather;
    strategy.pieces = 2;
    const std::string label = ulysses ? "k, v to heads" : "gather k, v";
    for (const Plan& plan :
         attention_plans({problem, first_ranks(4), strategy, true, {}}, AttentionPass::forward)) {
      const std::vector<StepId> moves = steps_with<Collective>(plan, label),
                                kernels = steps_with<Kernel>(plan, "attention");
      ASSERT_EQ(moves.size(), 4U);  // k and v of both pieces
      ASSERT_EQ(kernels.size(), 2U);
      EXPECT_FALSE(is_behind(plan, moves[3], kernels[0])) << label;
      EXPECT_FALSE(is_behind(plan, kernels[0], moves[2])) << label;
      EXPECT_TRUE(is_behind(plan, kernels[1], moves[3])) << label;
      if (!ulysses) continue;
      const std::vector<StepId> home = steps_with<Collective>(plan, "out to rows");
      ASSERT_EQ(home.size(), 2U);
      EXPECT_FALSE(is_behind(plan, home[0], kernels[1]));
      EXPECT_FALSE(is_behind(plan, kernels[1], home[0]));
    }
    for (const Plan& plan :
         attention_plans({problem, first_ranks(4), strategy, true, {}}, AttentionPass::backward)) {
      const std::vector<StepId> kernels = steps_with<Kernel>(plan, "attention backward"),
                                moves = steps_with<Collective>(plan, ulysses ? "dout to heads" : label),
                                home = steps_with<Collective>(plan, ulysses ? "dq to rows" : "dk, dv");
      ASSERT_EQ(kernels.size(), 2U);
      ASSERT_FALSE(moves.empty() || home.empty());
      EXPECT_FALSE(is_behind(plan, moves.back(), kernels[0])) << label;
      EXPECT_FALSE(is_behind(plan, kernels[1], home.front())) << label;
    }
  }
}

}  // namespace
}  // namespace cp::testing

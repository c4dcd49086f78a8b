// Every strategy x balance x mask x length x heads, forward and backward: planned, checked, run with data,
// its ledgers kept, compared with one device.
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/text.h"
#include "sim/proof/run/attention_run.h"
#include "tests/context_parallel/problem_generator.h"
#include "tests/context_parallel/run_findings.h"
#include "tests/support/any_case.h"

namespace cp::testing {
namespace {

sim::AttentionRunOptions with_backward() {
  sim::AttentionRunOptions options;
  options.backward = true;
  return options;
}

std::string run_findings(const sim::AttentionTestData& data, int cp, const Strategy& strategy,
                         const AttentionOptions& asked = {}) {
  return findings(
      sim::run_attention(data, {data.problem(), first_ranks(cp), strategy, true, asked}, with_backward()));
}

constexpr const char* kBalances[] = {"contiguous",
                                     "head_tail",
                                     "striped",
                                     "striped:3",
                                     "cost:4",
                                     "head_tail_exchange",
                                     "per_document:head_tail"};

// Every strategy with every balance.
template <class Visit>
void for_each_strategy(const AttentionProblem& problem, int cp, const Visit& visit) {
  for (const std::string& name : strategy_names()) {
    for (const char* balance : kBalances) {
      Strategy strategy = named_strategy({name, {}, {}}, problem, cp);
      strategy.balance = parse_balance(balance);
      visit(strategy);
    }
  }
}

enum class Mask { none, causal, window, documents, causal_documents };
enum class Heads { mha, gqa, mqa };

class EveryStrategy : public ::testing::TestWithParam<std::tuple<Mask, std::int64_t, Heads>> {};

TEST_P(EveryStrategy, EqualsOneDevice) {
  const auto& [mask, seq_len, heads] = GetParam();
  AttentionProblem problem;
  problem.q_len = problem.kv_len = seq_len;
  problem.q_heads = 6;
  problem.kv_heads = heads == Heads::mha ? 6 : heads == Heads::gqa ? 3 : 1;
  problem.head_dim = 4, problem.v_head_dim = 3;
  problem.causal = mask == Mask::causal || mask == Mask::causal_documents;
  if (mask == Mask::window) problem.window = 4;
  if (mask == Mask::documents || mask == Mask::causal_documents) {
    problem.cu_seqlens = {0, seq_len / 8, seq_len / 8, seq_len / 2, seq_len - seq_len / 6};
  }
  const sim::AttentionTestData data(problem, 1);
  constexpr int kRanks = 4;
  for_each_strategy(problem, kRanks, [&](const Strategy& strategy) {
    EXPECT_EQ(run_findings(data, kRanks, strategy), "")
        << to_string(problem) << " by " << to_string(strategy);
  });
}

// Even, uneven, and shorter than the group.
INSTANTIATE_TEST_SUITE_P(Table, EveryStrategy,
                         ::testing::Combine(::testing::Values(Mask::none, Mask::causal, Mask::window,
                                                              Mask::documents, Mask::causal_documents),
                                            ::testing::Values(32, 37, 3),
                                            ::testing::Values(Heads::mha, Heads::gqa, Heads::mqa)));

// Two batch entries of 29 rows for 6 query heads on 3 kv heads.
AttentionProblem uneven_problem() {
  AttentionProblem problem;
  problem.batch = 2;
  problem.q_len = problem.kv_len = 29;
  problem.q_heads = 6, problem.kv_heads = 3;
  problem.head_dim = 4, problem.v_head_dim = 3;
  problem.causal = true;
  return problem;
}

TEST(AttentionStrategies, EveryFormatEqualsOneDevice) {
  for (const TensorFormat format : {TensorFormat::bshd, TensorFormat::bnsd, TensorFormat::sbhd}) {
    AttentionProblem problem = uneven_problem();
    problem.format = format;
    const sim::AttentionTestData data(problem, 1);
    for_each_strategy(problem, 4, [&](const Strategy& strategy) {
      EXPECT_EQ(run_findings(data, 4, strategy), "") << name(format) << " by " << to_string(strategy);
    });
  }
}

// What is asked for is there, what is not is neither there nor moved, and the ledgers know; on six ranks, so
// that double rings have three nodes.
TEST(AttentionStrategies, EveryChoiceOfGradientsEqualsOneDevice) {
  const sim::AttentionTestData data(uneven_problem(), 1);
  for (int asked = 1; asked < 8; ++asked) {
    const AttentionOptions options{{(asked & 1) != 0, (asked & 2) != 0, (asked & 4) != 0},
                                   asked % 2 == 0 ? LsePlace::home : LsePlace::computed};
    for_each_strategy(data.problem(), 6, [&](Strategy strategy) {
      if (strategy.inner_ring > 1) strategy.inner_ring = 2;
      EXPECT_EQ(run_findings(data, 6, strategy, options), "")
          << to_string(options.gradients) << " by " << to_string(strategy);
    });
  }
}

// Which rank stands where in the group is the request's choice.
TEST(AttentionStrategies, GroupsOfAnyRanksInAnyOrderEqualOneDevice) {
  const sim::AttentionTestData data(uneven_problem(), 1);
  for_each_strategy(data.problem(), 6, [&](Strategy strategy) {
    if (strategy.inner_ring > 1) strategy.inner_ring = 2;
    EXPECT_EQ(findings(sim::run_attention(data, {data.problem(), {5, 2, 7, 3, 1, 4}, strategy, true, {}},
                                          with_backward())),
              "")
        << to_string(strategy);
  });
}

// Documents of their own, one entry's padding where another has rows, and two entries that share theirs.
TEST(AttentionStrategies, BatchEntriesWithDocumentsOfTheirOwnEqualOneDevice) {
  AttentionProblem problem = uneven_problem();
  problem.batch = 4;
  problem.cu_seqlens_of_entry = {{0, 10, 29}, {0, 3, 3, 20}, {0, 3, 3, 20}, {0, 29}};
  for (const bool causal : {true, false}) {
    problem.causal = causal;
    const sim::AttentionTestData data(problem, 1);
    for_each_strategy(problem, 4, [&](const Strategy& strategy) {
      EXPECT_EQ(run_findings(data, 4, strategy), "") << to_string(problem) << " by " << to_string(strategy);
    });
  }
}

RC_GTEST_PROP(AttentionStrategies, AnyLegalProblemOnAnyStrategyEqualsOneDevice, ()) {
  const AttentionProblem problem = *any_problem_at_all();
  const int cp = pick("cp", rc::gen::inRange(1, 9));
  const Strategy strategy = *any_strategy(problem, cp);
  const AttentionOptions options = *any_options();
  RC_LOG() << to_string(problem) << " documents " << documents_text(problem) << " on " << cp << " by "
           << to_string(strategy) << ", " << to_string(options.gradients) << ", lse " << name(options.lse)
           << "\n";
  const sim::AttentionTestData data(problem, pick("seed", rc::gen::arbitrary<std::uint64_t>()));
  RC_ASSERT(run_findings(data, cp, strategy, options) == "");
}

RC_GTEST_PROP(AttentionStrategies, ARefusedOnesAlternativeRunsAndIsExact, ()) {
  AttentionProblem problem = *any_problem();
  const int cp = pick("cp", rc::gen::inRange(1, 7));
  Strategy strategy = *any_strategy(problem, cp);
  strategy.ulysses_degree = pick("strategy.ulysses_degree", rc::gen::inRange(-1, 12));
  strategy.inner_ring = pick("strategy.inner_ring", rc::gen::inRange(0, 5));
  if (pick("whether a prefix", rc::gen::inRange(0, 4)) == 0) problem.options[KernelOption::prefix] = "3";
  if (pick("whether problem.dtype", rc::gen::inRange(0, 4)) == 0) problem.dtype = DType::i32;
  const auto refusal = refuse(problem, cp, strategy);
  RC_PRE(refusal.has_value());
  RC_LOG() << refusal->reason << "\n";
  RC_ASSERT(run_findings(sim::AttentionTestData(refusal->problem, 1), cp, refusal->strategy) == "");
}

// ---- bytes against the closed formulas, even and unskipped ----

struct Formula {
  std::string strategy;
  int ulysses_degree, ring;
  std::int64_t forward, backward;  // a rank
  std::int64_t own_lse = 0;        // forward, where it comes home
};

TEST(AttentionBytes, EvenUnskippedCasesFollowTheClosedFormulas) {
  constexpr std::int64_t kRanks = 4;
  AttentionProblem problem;
  problem.q_len = problem.kv_len = 64;
  problem.q_heads = 8, problem.kv_heads = 4;
  problem.head_dim = problem.v_head_dim = 8;
  problem.batch = 2;
  problem.dtype = DType::bf16;
  const std::int64_t rows = problem.batch * problem.q_len / kRanks;
  const std::int64_t q = rows * problem.q_heads * 8 * 2, kv = 2 * rows * problem.kv_heads * 8 * 2,
                     dkv = 2 * kv;
  const std::int64_t out = 2 * q, lse = rows * problem.q_heads * 4, dq = 2 * q, p = kRanks - 1;
  const std::vector<Formula> formulas = {
      {"ring", 1, 4, p * kv, p * kv + p * dkv},
      {"all_gather", 1, 4, p * kv, p * kv + p * dkv},
      {"need_only", 1, 4, p * kv, p * kv + p * dkv},
      {"double_ring", 1, 4, p * kv, p * kv + p * dkv},
      {"ulysses", 4, 1, p * (2 * q + kv) / kRanks, p * (2 * q + kv) / kRanks, p * lse / kRanks},
      {"ulysses_ring", 2, 2, (2 * q + kv) / 2 + kv, (2 * q + kv) / 2 + kv + dkv, lse / 2},
      {"pass_q", 1, 4, p * q + p * (out + lse), p * (q + q + lse + lse + dq)},
  };
  const sim::AttentionTestData data(problem, 1);
  for (const Formula& formula : formulas) {
    const Strategy strategy = named_strategy({formula.strategy, {}, {}}, problem, kRanks);
    for (const LsePlace place : {LsePlace::home, LsePlace::computed}) {
      const std::int64_t forward = formula.forward + (place == LsePlace::home ? formula.own_lse : 0);
      const sim::AttentionRun run = sim::run_attention(
          data, {problem, first_ranks(kRanks), strategy, true, {{}, place}}, with_backward());
      EXPECT_EQ(findings(run), "") << formula.strategy;
      EXPECT_EQ(run.forward.bytes_received, kRanks * forward) << formula.strategy;
      EXPECT_EQ(run.forward.bytes_received_max, forward) << formula.strategy;
      EXPECT_EQ(run.backward.bytes_received, kRanks * formula.backward) << formula.strategy;
    }
  }
}

// What is left out does not travel, and takes no memory: of a head-tail ring the partial dK and dV (f32
// beside bf16), of pass_q the partial dQ.
TEST(AttentionBytes, GradientsThatNobodyAsksForDoNotTravel) {
  AttentionProblem problem;
  problem.q_len = problem.kv_len = 64;
  problem.q_heads = 4, problem.kv_heads = 4;
  problem.head_dim = problem.v_head_dim = 8;
  problem.dtype = DType::bf16;
  const std::int64_t rows = 64 / 4, kv = 2 * rows * 4 * 8 * 2, dk = rows * 4 * 8 * 4, p = 3;
  const sim::AttentionTestData data(problem, 1);
  const auto backward = [&](const char* strategy, Gradients gradients) {
    const sim::AttentionRun run = sim::run_attention(
        data,
        {problem, first_ranks(4), named_strategy({strategy, {}, {}}, problem, 4), true, {gradients, {}}},
        with_backward());
    EXPECT_EQ(findings(run), "") << strategy;
    return run.backward;
  };
  for (const char* strategy : {"ring", "all_gather", "need_only", "double_ring"}) {
    EXPECT_EQ(backward(strategy, {}).bytes_received_max, p * (kv + 2 * dk)) << strategy;
    EXPECT_EQ(backward(strategy, {.dk = false, .dv = false}).bytes_received_max, p * kv) << strategy;
    EXPECT_EQ(backward(strategy, {.dq = false, .dv = false}).bytes_received_max, p * (kv + dk)) << strategy;
    EXPECT_EQ(backward(strategy, {.dq = false}).bytes_received_max, p * (kv + 2 * dk)) << strategy;
    EXPECT_LT(backward(strategy, {.dk = false, .dv = false}).peak_bytes, backward(strategy, {}).peak_bytes);
    EXPECT_LT(backward(strategy, {.dq = false}).peak_bytes, backward(strategy, {}).peak_bytes) << strategy;
  }
  const std::int64_t q = rows * 4 * 8 * 2, lse = rows * 4 * 4, dq = dk;
  EXPECT_EQ(backward("pass_q", {}).bytes_received_max, p * (2 * q + 2 * lse + dq));
  EXPECT_EQ(backward("pass_q", {.dq = false}).bytes_received_max, p * (2 * q + 2 * lse));
  EXPECT_LT(backward("pass_q", {.dq = false}).peak_bytes, backward("pass_q", {}).peak_bytes);
}

// The exchange of query halves adds q/2 each way; the middle rank of an odd group keeps its own.
TEST(AttentionBytes, HeadTailExchangeAddsHalfOfQEachWay) {
  AttentionProblem problem;
  problem.q_len = problem.kv_len = 64;
  problem.q_heads = problem.kv_heads = 2;
  problem.causal = true;
  const std::int64_t q = 16 * 2 * 64 * 4, kv = 2 * q;
  Strategy strategy = named_strategy({"all_gather", {}, {}}, problem, 4);
  strategy.balance = parse_balance("head_tail_exchange");
  const sim::AttentionTestData data(problem, 1);
  const sim::AttentionRun run =
      sim::run_attention(data, {problem, first_ranks(4), strategy, true}, with_backward());
  EXPECT_EQ(findings(run), "");
  const std::int64_t lse = q / 64;
  EXPECT_EQ(run.forward.bytes_received_max, 3 * kv + q / 2 + q / 2 + lse / 2);
  EXPECT_EQ(run.backward.bytes_received_max, 3 * kv + 3 * kv + q / 2 + q / 2);
}

TEST(AttentionBytes, NothingIsSentThatNobodyNeedsUnlessAsked) {
  AttentionProblem problem;
  problem.q_len = problem.kv_len = 64;
  problem.q_heads = problem.kv_heads = 1;
  problem.causal = true;
  const std::int64_t kv = 2 * 16 * 64 * 4;
  const sim::AttentionTestData data(problem, 1);
  Strategy strategy;  // a contiguous ring: block b goes to ranks b+1 .. 3
  const auto bytes = [&] {
    const sim::AttentionRun run = sim::run_attention(data, {problem, first_ranks(4), strategy, true});
    EXPECT_EQ(findings(run), "");
    return run.forward;
  };
  EXPECT_EQ(bytes().bytes_received, (3 + 2 + 1) * kv);
  EXPECT_EQ(bytes().redundant_kv_bytes, 0);
  strategy.send_empty = true;
  EXPECT_EQ(bytes().bytes_received, 4 * 3 * kv);
  EXPECT_EQ(bytes().redundant_kv_bytes, (3 + 2 + 1) * kv);
}

}  // namespace
}  // namespace cp::testing

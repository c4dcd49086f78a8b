// Plans for a target with fused attention, on the fabric with data and every ledger.
#include <algorithm>
#include <iostream>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/text.h"
#include "shared/context_parallel/attention_calls.h"
#include "shared/plan/operations.h"
#include "sim/proof/ledger/attention_ledger.h"
#include "sim/proof/run/attention_run.h"
#include "tests/context_parallel/problem_generator.h"
#include "tests/support/any_case.h"

namespace cp::testing {
namespace {

// A problem that the library takes: two bytes, dims that are multiples of 8.
AttentionProblem fused_problem(const AttentionProblem& any) {
  return pick_case("problem with fused kernels", [any] {
    AttentionProblem problem = any;
    problem.dtype = *rc::gen::element(DType::bf16, DType::bf16, DType::f16);
    problem.head_dim = *rc::gen::element(8, 16);
    problem.v_head_dim = *rc::gen::element(8, 16);
    return problem;
  });
}

int count_calls(const std::vector<Plan>& plans, AttentionEngine engine) {
  int count = 0;
  for (const Plan& plan : plans) {
    for (const StepRef& ref : steps_of(plan)) {
      visit_operation(ref.step->work, [&](const auto& op) {
        if constexpr (requires { op.engine; }) count += op.engine == engine ? 1 : 0;
      });
    }
  }
  return count;
}

std::string findings(const sim::AttentionRun& run) {
  std::string text;
  for (const sim::Verdict& verdict : run.verdicts) {
    if (!verdict.holds) text += str(verdict.name, ": ", verdict.finding, "\n");
  }
  for (const sim::TensorError& error : run.errors) {
    if (!error.holds()) text += str(error.tensor, ": ", error.finding, "\n");
  }
  return text;
}

RC_GTEST_PROP(FusedPlans, KeepEveryLedgerAndTheTolerances, ()) {
  const AttentionProblem problem = fused_problem(*any_problem_at_all());
  const int cp = pick("cp", rc::gen::inRange(1, 7));
  const Strategy strategy = *any_strategy(problem, cp);
  std::vector<Rank> ranks(static_cast<std::size_t>(cp));
  std::iota(ranks.begin(), ranks.end(), 0);
  const AttentionRequest request{problem, ranks, strategy, true, *any_options()};
  RC_LOG() << to_string(problem) << " documents " << documents_text(problem) << " offset " << problem.offset()
           << " on " << cp << " by " << to_string(strategy) << ", " << to_string(request.options.gradients)
           << ", lse " << name(request.options.lse) << "\n";
  sim::AttentionRunOptions options;
  options.backward = true;
  options.target = gpu_target(pick("GPU", rc::gen::element<std::string>("sm80", "sm90", "sm100", "sm120")));
  const sim::AttentionTestData data(problem, pick("seed", rc::gen::inRange<std::uint64_t>(0, 1000)));
  RC_ASSERT(findings(sim::run_attention(data, request, options)) == "");
}

// Dtypes and dims that it does not take: the plans of the host, but for the target's name and alignment.
RC_GTEST_PROP(FusedPlans, WithoutAFormAreTheHosts, ()) {
  AttentionProblem problem = *any_problem();
  problem.head_dim = 12;
  const int cp = pick("cp", rc::gen::inRange(1, 5));
  std::vector<Rank> ranks(static_cast<std::size_t>(cp));
  std::iota(ranks.begin(), ranks.end(), 0);
  const AttentionRequest request{problem, ranks, *any_strategy(problem, cp), true};
  Target gpu = gpu_target("sm90");
  gpu.name = "host", gpu.alignment_bytes = 1;
  for (const AttentionPass pass : {AttentionPass::forward, AttentionPass::backward}) {
    std::vector<Plan> plans = attention_plans(request, pass, gpu);
    for (Plan& plan : plans) plan.target = host_target();
    RC_ASSERT(plans == attention_plans(request, pass));
  }
}

AttentionRequest head_tail_ring() {
  AttentionProblem problem;
  problem.q_len = problem.kv_len = 64, problem.q_heads = 4, problem.kv_heads = 2;
  problem.dtype = DType::bf16, problem.causal = true;
  Strategy strategy;
  strategy.balance = parse_balance("head_tail");
  return {problem, {0, 1, 2, 3}, strategy, true};
}

// Each step of a head-tail ring is one call.
TEST(FusedPlans, AHeadTailRingCallsOnceAStep) {
  for (const AttentionPass pass : {AttentionPass::forward, AttentionPass::backward}) {
    const std::vector<Plan> plans = attention_plans(head_tail_ring(), pass, gpu_target("sm90"));
    EXPECT_EQ(count_calls(plans, AttentionEngine::fused), 16);
    EXPECT_EQ(count_calls(plans, AttentionEngine::exact), 0);
  }
}

// ---- what the exact kernels still compute: the list of docs/attention.md ----

struct Mask {
  const char* name;
  bool causal;
  std::optional<std::int64_t> window;
};
constexpr std::int64_t kTokens = 2051;

// Of what the library takes, in the words of docs/attention.md.
struct ExactCalls {
  int all = 0, single_pair = 0, small = 0;
  std::string others;

  // The heads are those of a rank.
  void count(const Plan& plan, const AttentionProblem& problem, std::int64_t q_heads) {
    std::map<std::string, std::vector<const Step*>> calls;  // by label
    for (const StepRef& ref : steps_of(plan)) calls[ref.step->label].push_back(ref.step);
    for (const auto& call : calls) {
      const std::string& label = call.first;
      const std::vector<const Step*>& steps = call.second;
      int fused = 0;
      for (const Step* step : steps) {
        visit_operation(step->work, [&](const auto& op) {
          if constexpr (requires { op.engine; }) fused += op.engine == AttentionEngine::fused ? 1 : 0;
        });
      }
      for (const Step* step : steps) {
        visit_operation(step->work, [&](const auto& op) {
          if constexpr (requires { op.engine; }) {
            if (op.engine == AttentionEngine::exact)
              explain(
                  op.slices, fused, plan.target, problem, q_heads, requires { op.dout; }, label);
          }
        });
      }
    }
  }

 private:
  static bool is_pair(const MaskSlice& slice) { return slice.q_len == 1 && slice.k_len == 1; }

  void explain(const std::vector<MaskSlice>& slices, int fused, const Target& target,
               const AttentionProblem& problem, std::int64_t q_heads, bool backward,
               const std::string& label) {
    ++all;
    if (backward && std::ranges::all_of(slices, is_pair)) {
      ++single_pair;
      return;
    }
    FusedShape of;
    of.backward = backward, of.dtype = problem.dtype;
    of.q_heads = of.kv_heads = q_heads;
    of.head_dim = problem.head_dim, of.v_head_dim = problem.v_head_dim;
    std::size_t pieces = 0;
    bool are_small = true;
    for (const MaskSlice& slice : slices) {
      for (const detail::AttentionCall& call : detail::cut_into_calls({slice}, *target.fused_attention, of)) {
        ++pieces;
        const double flops = 2.0 * static_cast<double>(of.q_heads * (of.head_dim + of.v_head_dim)) *
                             static_cast<double>(call.q.len * call.k.len) / 2;
        are_small = are_small && flops < detail::kLeastCallFlops;
      }
    }
    if (are_small && static_cast<std::size_t>(fused) + pieces > detail::kFewCalls)
      ++small;
    else
      others += str(label, " has an exact call of ", pieces, " pieces beside ", fused, " fused ones\n");
  }
};

TEST(FusedPlans, OnlyWhatIsListedTakesTheExactKernels) {
  const std::vector<Mask> masks = {{"full", false, {}},
                                   {"causal", true, {}},
                                   {"causal, window 2", true, 2},
                                   {"causal, window 200", true, 200},
                                   {"causal, window 1000", true, 1000},
                                   {"window 200 both ways", false, 200},
                                   {"window 1000 both ways", false, 1000}};
  std::vector<std::int64_t> many = {0};
  while (many.back() + 25 < kTokens) many.push_back(many.back() + 25);
  many.push_back(kTokens);
  const std::vector<std::vector<std::int64_t>> documents = {{}, {0, 300, 301, 1450, kTokens}, many};
  std::map<std::string, ExactCalls> by_balance;
  int plans_made = 0;
  // The problems are shared out among the generations that pack documents.
  const std::vector<std::string> others = {"sm90", "sm100", "sm120"};
  std::size_t problems = 0;
  for (const Mask& mask : masks) {
    for (const auto& ends : documents) {
      for (const std::string& gpu : {std::string("sm80"), others[problems++ % others.size()]}) {
        AttentionProblem problem;
        problem.q_len = problem.kv_len = kTokens, problem.q_heads = 8, problem.kv_heads = 2;
        problem.head_dim = problem.v_head_dim = 128;
        problem.dtype = plans_made % 2 == 0 ? DType::bf16 : DType::f16;
        problem.causal = mask.causal, problem.window = mask.window, problem.cu_seqlens = ends;
        std::set<std::string> seen;
        for (const Strategy& standard : standard_strategies(problem, 4)) {
          for (const char* balance : {"contiguous", "head_tail", "striped", "striped:3", "cost:16",
                                      "head_tail_exchange", "per_document:head_tail"}) {
            Strategy strategy = standard;
            strategy.balance = parse_balance(balance);
            if (!seen.insert(to_string(strategy, 4)).second) continue;
            if (refuse(problem, 4, strategy, gpu_target(gpu))) continue;
            const AttentionRequest request{problem, {0, 1, 2, 3}, strategy, true};
            for (const AttentionPass pass : {AttentionPass::forward, AttentionPass::backward}) {
              ExactCalls& exact = by_balance[str(balance, ends.size() > 2 ? ", documents" : "")];
              for (const Plan& plan : attention_plans(request, pass, gpu_target(gpu))) {
                ++plans_made;
                exact.count(plan, problem, problem.q_heads / strategy.ulysses_degree);
              }
              ASSERT_EQ(exact.others, "") << gpu << ' ' << to_string(strategy, 4) << ' ' << mask.name << ' '
                                          << ends.size() << " ends";
            }
          }
        }
      }
    }
  }
  for (const auto& [balance, exact] : by_balance) {
    std::cout << "[ exact    ] " << balance << ": " << exact.all << " calls, of them " << exact.single_pair
              << " of single pairs, " << exact.small << " of many small pieces\n";
  }
  std::cout << "[ exact    ] in " << plans_made << " plans\n";
  // Without documents and stripes, single pairs are all that is left.
  for (const char* balance : {"contiguous", "head_tail", "head_tail_exchange"}) {
    EXPECT_GT(by_balance[balance].all, 0);
    EXPECT_EQ(by_balance[balance].all, by_balance[balance].single_pair);
  }
}

// A window over ranks that follow one another: a call for the own keys, and one for the window's tail.
TEST(FusedPlans, AWindowOverRanksIsFused) {
  AttentionRequest request = head_tail_ring();
  request.problem.window = 10;
  request.strategy.balance = parse_balance("contiguous");
  for (const AttentionPass pass : {AttentionPass::forward, AttentionPass::backward}) {
    const std::vector<Plan> plans = attention_plans(request, pass, gpu_target("sm90"));
    EXPECT_EQ(count_calls(plans, AttentionEngine::fused), 4 + 3);
    EXPECT_EQ(count_calls(plans, AttentionEngine::exact), 0);
    Target old = gpu_target("sm90");
    old.fused_attention->window_tail = false;
    EXPECT_EQ(count_calls(attention_plans(request, pass, old), AttentionEngine::exact), 3);
  }
}

// Fused kernels write all three gradients: what nobody wants goes to memory that they share, and no further.
TEST(FusedPlans, GradientsThatNobodyAsksForAreWrittenAndLeft) {
  AttentionRequest request = head_tail_ring();
  request.options.gradients = {.dk = false, .dv = false};
  for (const Plan& plan : attention_plans(request, AttentionPass::backward, gpu_target("sm90"))) {
    int unwanted = 0;
    for (const Buffer& buffer : plan.buffers) unwanted += buffer.name == "unwanted" ? 1 : 0;
    EXPECT_EQ(unwanted, 2);
    for (const StepRef& ref : steps_of(plan)) EXPECT_EQ(ref.step->label.find("dk"), std::string::npos);
  }
}

// Entries with documents of their own are packed calls of their own.
TEST(FusedPlans, EntriesWithDocumentsOfTheirOwnArePacked) {
  AttentionRequest request = head_tail_ring();
  request.problem.batch = 3;
  request.problem.cu_seqlens_of_entry = {{0, 16, 40, 64}, {0, 32, 64}, {0, 32, 64}};
  request.ranks = {0};
  const std::vector<Plan> plans = attention_plans(request, AttentionPass::forward, gpu_target("sm90"));
  EXPECT_EQ(count_calls(plans, AttentionEngine::exact), 0);
  // One of three documents; two entries at once cannot be packed, and have a call for each document.
  EXPECT_EQ(count_calls(plans, AttentionEngine::fused), 1 + 2);
}

// Every part that a merge takes counts: without one, or with one in another's place, pairs are missing.
TEST(FusedPlans, TheLedgerMissesAPartThatIsNotMerged) {
  const AttentionRequest request = head_tail_ring();
  for (const AttentionPass pass : {AttentionPass::forward, AttentionPass::backward}) {
    const std::vector<Plan> correct = attention_plans(request, pass, gpu_target("sm90"));
    EXPECT_THAT(sim::keep_ledger(request, pass, correct).cells.texts(), ::testing::IsEmpty());
    int damaged = 0;
    for (std::size_t rank = 0; rank < correct.size(); ++rank) {
      for (std::size_t i = 0; i < correct[rank].segments.size(); ++i) {
        for (const bool leave_out : {true, false}) {
          std::vector<Plan> plans = correct;
          auto* kernel = std::get_if<Kernel>(&std::get<Step>(plans[rank].segments[i]).work);
          auto* merge = kernel == nullptr ? nullptr : std::get_if<AttentionMerge>(kernel);
          if (merge == nullptr || merge->more.empty()) continue;
          if (leave_out) {
            merge->more.pop_back();
            if (!merge->more_lse.empty()) merge->more_lse.pop_back();
          } else {
            merge->more.back() = merge->in;
            if (!merge->more_lse.empty()) merge->more_lse.back() = merge->in_lse;
          }
          EXPECT_THAT(sim::keep_ledger(request, pass, plans).cells.texts(),
                      ::testing::Not(::testing::IsEmpty()));
          ++damaged;
        }
      }
    }
    EXPECT_GE(damaged, 8);
  }
}

// One head, whose rows from the second on are a contiguous lse that is out of line: both passes read or write
// a copy.
TEST(FusedPlans, LseOfSomeRowsOfOneHeadIsInLine) {
  AttentionRequest request = head_tail_ring();
  request.problem.q_heads = request.problem.kv_heads = 1;
  request.strategy.balance = parse_balance("striped:1");
  for (const AttentionPass pass : {AttentionPass::forward, AttentionPass::backward}) {
    const std::vector<Plan> plans = attention_plans(request, pass, gpu_target("sm90"));
    EXPECT_EQ(count_calls(plans, AttentionEngine::fused), 16);
    for (const Plan& plan : plans) {
      for (const StepRef& ref : steps_of(plan)) {
        visit_operation(ref.step->work, [&](const auto& op) {
          if constexpr (requires { op.engine; }) {
            EXPECT_EQ(op.lse.offset % 4, 0);
          }
        });
      }
    }
  }
}

// The steps alone: a call of rank 1 against its own block, written where the result will be, and one against
// the head of the block before.
TEST(FusedPlans, TextOfAForwardPlan) {
  AttentionRequest request = head_tail_ring();
  request.ranks = {0, 1};
  const std::string text = to_text(attention_plan(request, AttentionPass::forward, 1, gpu_target("sm90")));
  EXPECT_EQ(
      text.substr(text.find("step")),
      R"(step 0 on 1 exchange group=0 sends=0:b1+0[4096],0:b2+0[4096] recvs=0:b6+0[4096],0:b8+0[4096] counts=e9dc342d567f1a7c560081e950617b9b "k, v of step 1"
step 1 on 0 attention_forward q=b0+0[1x32x4x64] k=b1+0[1x32x2x64] v=b2+0[1x32x2x64] out=b3+0[1x32x4x64] lse=b4+0[1x4x32] softmax_scale=0.125 slices=0+32/0+32/causal/0/0 engine=fused workspace=b9+0[16384] "attention of step 0"
step 2 on 0 attention_forward q=b0+0[1x32x4x64] k=b6+0[1x16x2x64:4096x128x64x1] v=b8+0[1x16x2x64:4096x128x64x1] out=b10+0[1x32x4x64] lse=b11+0[1x4x32] softmax_scale=0.125 slices=0+32/0+16/full/0/0 engine=fused workspace=b9+0[16384] after 0 "attention of step 1"
step 3 on 0 attention_merge in=b10+0[1x32x4x64] in_lse=b11+0[1x4x32] out=b3+0[1x32x4x64] lse=b4+0[1x4x32] "merge out"
)");
}

}  // namespace
}  // namespace cp::testing

// Merges on a stream of their own, beside the attention of the next step: results, what waits for what, and
// memory that does not grow with the steps. (The ledgers, bounds and traces of any such plan are held by the
// properties that draw strategies.)
#include <algorithm>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/context_parallel/part_pool.h"
#include "shared/plan/check.h"
#include "shared/plan/fused_attention.h"
#include "tests/context_parallel/problem_generator.h"
#include "tests/context_parallel/run_findings.h"

namespace cp::testing {
namespace {

constexpr auto kBeside = Strategy::Merges::beside;

AttentionProblem some_problem(std::int64_t rows, DType dtype = DType::f32) {
  AttentionProblem problem;
  problem.q_len = problem.kv_len = rows;
  problem.batch = 2, problem.q_heads = 6, problem.kv_heads = 3, problem.head_dim = problem.v_head_dim = 8;
  problem.causal = true, problem.dtype = dtype;
  return problem;
}

Strategy strategy_of(std::string_view name, const AttentionProblem& problem, int cp, const char* balance) {
  Strategy strategy = named_strategy({std::string(name), {}, {}}, problem, cp);
  strategy.balance = parse_balance(balance), strategy.merges = kBeside;
  return strategy;
}

std::vector<Plan> plans_of(const AttentionProblem& problem, int cp, const Strategy& strategy,
                           AttentionPass pass, const Target& target = host_target()) {
  return attention_plans({problem, first_ranks(cp), strategy, true, {}}, pass, target);
}

// ---- results ----

TEST(MergesBeside, EveryStrategyEqualsOneDevice) {
  for (const bool packed : {false, true}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      AttentionProblem problem = some_problem(41, dtype);
      if (packed) problem.cu_seqlens = {0, 5, 5, 23, 41};
      for (const std::string& name : strategy_names()) {
        for (const char* balance : {"contiguous", "head_tail"}) {
          const Strategy strategy = strategy_of(name, problem, 6, balance);
          EXPECT_EQ(findings_of(problem, 6, strategy), "") << to_string(problem) << to_string(strategy);
          if (dtype == DType::f32) continue;
          EXPECT_EQ(findings_of(problem, 6, strategy, gpu_target("sm90")), "")
              << "sm90: " << to_string(problem) << " by " << to_string(strategy);
        }
      }
    }
  }
}

TEST(MergesBeside, AreAChoiceThatOtherPlansDoNotSee) {
  const AttentionProblem problem = some_problem(48);
  Strategy strategy = strategy_of("ring", problem, 4, "head_tail");
  EXPECT_EQ(to_string(strategy), "ring head_tail, merges beside");
  const auto streams = [&] { return plans_of(problem, 4, strategy, AttentionPass::forward).front().streams; };
  const std::vector<std::string> beside = streams();
  EXPECT_EQ(std::count(beside.begin(), beside.end(), kMergeStream), 1);
  const Digest digest = Hasher().add(0).digest();
  Hasher with, without;
  hash(with, strategy);
  strategy.merges = Strategy::Merges::in_turn;
  hash(without, strategy);
  EXPECT_NE(with.digest(), without.digest());
  EXPECT_NE(with.digest(), digest);
  const std::vector<std::string> in_turn = streams();
  EXPECT_EQ(std::count(in_turn.begin(), in_turn.end(), kMergeStream), 0);
}

// ---- what waits for what ----

bool is_attention(const Step& step) {
  const auto* kernel = std::get_if<Kernel>(&step.work);
  return kernel != nullptr && (std::holds_alternative<AttentionForward>(*kernel) ||
                               std::holds_alternative<AttentionBackward>(*kernel));
}
bool is_merge(const Plan& plan, const Step& step) {
  return plan.streams[static_cast<std::size_t>(step.stream)] == kMergeStream;
}

// The steps that end before the given one begins, by the order of streams and the edges.
std::vector<bool> before(const std::vector<StepRef>& steps, std::size_t step) {
  std::vector<bool> is_before(steps.size());
  std::vector<std::size_t> open = {step};
  while (!open.empty()) {
    const std::size_t at = open.back();
    open.pop_back();
    const auto add = [&](std::size_t earlier) {
      if (!is_before[earlier]) is_before[earlier] = true, open.push_back(earlier);
    };
    for (const Edge& edge : steps[at].step->after) add(static_cast<std::size_t>(edge.step));
    for (std::size_t i = at; i-- > 0;) {
      if (steps[i].step->stream == steps[at].step->stream) {
        add(i);
        break;
      }
    }
  }
  return is_before;
}

// Of a rank's merges: how many the attention that comes behind them in the plan waits for at most, if it is
// not the next but one.
void expect_next_attention_waits_for_no_merge(const Plan& plan, const std::string& of) {
  const std::vector<StepRef> steps = steps_of(plan);
  int merges = 0;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (!is_merge(plan, *steps[i].step)) continue;
    const auto next = std::find_if(steps.begin() + static_cast<std::ptrdiff_t>(i), steps.end(),
                                   [](const StepRef& ref) { return is_attention(*ref.step); });
    if (next == steps.end()) continue;
    ++merges;
    EXPECT_FALSE(before(steps, static_cast<std::size_t>(next - steps.begin()))[i])
        << of << ", rank " << plan.self << ": attention step " << next->id << " waits for merge "
        << steps[i].id << " (" << steps[i].step->label << ")";
  }
  EXPECT_GT(merges, 1) << of << ", rank " << plan.self;
}

TEST(MergesBeside, TheNextAttentionDoesNotWait) {
  AttentionProblem problem = some_problem(96);
  problem.causal = false;
  const Strategy ring = strategy_of("ring", problem, 6, "contiguous");
  for (const AttentionPass pass : {AttentionPass::forward, AttentionPass::backward}) {
    const std::string of = pass == AttentionPass::forward ? "forward" : "backward";
    for (const Plan& plan : plans_of(problem, 6, ring, pass))
      expect_next_attention_waits_for_no_merge(plan, "host, " + of);
    problem.dtype = DType::bf16;
    for (const Plan& plan : plans_of(problem, 6, ring, pass, gpu_target("sm90")))
      expect_next_attention_waits_for_no_merge(plan, "sm90, " + of);
    problem.dtype = DType::f32;
  }
}

// A merge must not run before its part is there, and a part must not be written before the one that lay there
// is merged. If any edge between the two streams is lost, the checker says so.
TEST(MergesBeside, NoEdgeBetweenTheStreamsIsTooMany) {
  int edges = 0;
  for (const char* name : {"ring", "double_ring", "pass_q", "ulysses_ring"}) {
    for (const bool fused : {false, true}) {
      const AttentionProblem problem = some_problem(64, fused ? DType::bf16 : DType::f32);
      const Target target = fused ? gpu_target("sm90") : host_target();
      for (const AttentionPass pass : {AttentionPass::forward, AttentionPass::backward}) {
        const std::vector<Plan> whole =
            plans_of(problem, 8, strategy_of(name, problem, 8, "head_tail"), pass, target);
        check(whole);
        std::vector<Plan> plans = whole;
        for (std::size_t s = 0; s < plans[3].segments.size(); ++s) {
          auto& step = std::get<Step>(plans[3].segments[s]);
          for (std::size_t e = 0; e < step.after.size(); ++e) {
            const Edge lost = step.after[e];
            const Step& other = *steps_of(whole[3])[static_cast<std::size_t>(lost.step)].step;
            if (!is_merge(whole[3], step) && !is_merge(whole[3], other)) continue;
            step.after.erase(step.after.begin() + static_cast<std::ptrdiff_t>(e));
            ++edges;
            EXPECT_THROW(check(plans), CheckFailure)
                << name << " on " << target.name << ": step " << s << " (" << step.label << ") without step "
                << lost.step << " (" << other.label << ")";
            step.after.insert(step.after.begin() + static_cast<std::ptrdiff_t>(e), lost);
          }
        }
      }
    }
  }
  EXPECT_GT(edges, 100);
}

// ---- memory ----

// What merges beside attention add to the arena, for rings of as many rows a rank.
std::int64_t added_bytes(int ranks, AttentionPass pass, const Target& target, DType dtype,
                         const char* balance, bool causal) {
  AttentionProblem problem = some_problem(std::int64_t{64} * ranks, dtype);
  problem.causal = causal;
  Strategy ring = strategy_of("ring", problem, ranks, balance);
  const auto arena = [&] {
    std::int64_t most = 0;
    for (const Plan& plan : plans_of(problem, ranks, ring, pass, target))
      most = std::max(most, plan.arena_bytes);
    return most;
  };
  const std::int64_t beside = arena();
  ring.merges = Strategy::Merges::in_turn;
  return beside - arena();
}

TEST(MergesBeside, TakeOnePartMoreHoweverLongTheRing) {
  for (const bool fused : {false, true}) {
    const Target target = fused ? gpu_target("sm90") : host_target();
    const DType dtype = fused ? DType::bf16 : DType::f32;
    for (const AttentionPass pass : {AttentionPass::forward, AttentionPass::backward}) {
      for (const bool causal : {false, true}) {
        const auto added = [&](int ranks) {
          return added_bytes(ranks, pass, target, dtype, causal ? "head_tail" : "contiguous", causal);
        };
        // 64 rows of 2 entries. Up to four parts of a fused call wait for one merge, so that rings of more
        // are compared.
        const std::int64_t q = 2LL * 64 * 6 * 8, kv = 2LL * 2 * 64 * 3 * 8, lse = 2LL * 64 * 6;
        // In turn, the fused calls of a step write into the result, and one more into a part beside it; here
        // two more parts of 16 bits. Under a causal mask the part in turn may have half of the rows.
        const std::int64_t of_out = fused ? (causal ? 3 : 2) * (q * 2 + lse * 4) : (q + lse) * 4;
        const std::int64_t one_more = pass == AttentionPass::forward ? of_out : (q + kv) * 4;
        const std::string of = str(target.name, pass == AttentionPass::forward ? " forward" : " backward",
                                   causal ? " causal" : "");
        const std::int64_t six = added(6);
        EXPECT_LE(six, one_more) << of;
        for (const int ranks : {4, 8, 12, 16, 24}) EXPECT_LE(added(ranks), six) << of << ", " << ranks;
      }
    }
  }
}

// ---- the pool ----

using detail::PartPool;

TEST(PartPool, PartsTakeTurns) {
  PlanBuilder builder(0, host_target());
  PartPool pool(builder, true);
  std::vector<BufferId> turns;
  for (int part = 0; part < 6; ++part) {
    const PartPool::Place place = pool.take("part", DType::f32, {0, 8});
    turns.push_back(place.buffer);
    pool.give_back(place);
  }
  EXPECT_EQ(turns, (std::vector<BufferId>{0, 1, 0, 1, 0, 1}));
}

// Two wait for one merge: a third place takes the part that is written meanwhile.
TEST(PartPool, AsManyLayersAsWaitAtOnceAndOne) {
  PlanBuilder builder(0, host_target());
  PartPool pool(builder, true);
  std::vector<PartPool::Place> waiting;
  BufferId last = 0;
  for (int part = 0; part < 12; ++part) {
    if (waiting.size() == 2) {
      for (const PartPool::Place& place : waiting) pool.give_back(place);
      waiting.clear();
    }
    waiting.push_back(pool.take("part", DType::f32, {0, 8}));
    last = std::max(last, waiting.back().buffer);
  }
  EXPECT_EQ(last, 2);
}

TEST(PartPool, PartsOfOtherElementsShareALayer) {
  PlanBuilder builder(0, host_target());
  PartPool pool(builder, true);
  const PartPool::Place head = pool.take("part", DType::f32, {0, 4}),
                        tail = pool.take("part", DType::f32, {4, 4}),
                        whole = pool.take("part", DType::f32, {0, 8}),
                        other = pool.take("part", DType::bf16, {0, 4});
  EXPECT_EQ(head.buffer, tail.buffer);
  EXPECT_EQ(tail.offset, 4);
  EXPECT_NE(whole.buffer, head.buffer);
  EXPECT_NE(other.buffer, head.buffer);
}

TEST(PartPool, InTurnEachPartIsATemporary) {
  PlanBuilder builder(0, host_target());
  PartPool pool(builder, false);
  const PartPool::Place first = pool.take("part", DType::f32, {4, 4});
  pool.give_back(first);
  EXPECT_NE(pool.take("part", DType::f32, {4, 4}).buffer, first.buffer);
  EXPECT_EQ(first.offset, 0);
}

}  // namespace
}  // namespace cp::testing

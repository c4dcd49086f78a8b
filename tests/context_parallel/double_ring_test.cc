// Double rings of two, three and more nodes: every outer step is there, the last one among them, and the
// results are one device's.
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "shared/base/text.h"
#include "shared/plan/fused_attention.h"
#include "sim/proof/run/attention_run.h"
#include "tests/context_parallel/problem_generator.h"
#include "tests/context_parallel/run_findings.h"

namespace cp::testing {
namespace {

struct Nodes {
  int cp, inner_ring, ulysses_degree = 1;
  int ring() const { return cp / ulysses_degree; }
  int count() const { return ring() / inner_ring; }
};

void PrintTo(const Nodes& nodes, std::ostream* out) {
  *out << nodes.count() << " nodes of " << nodes.inner_ring << ", ulysses " << nodes.ulysses_degree;
}

AttentionRequest request_of(const Nodes& nodes, const AttentionProblem& problem, const char* balance) {
  Strategy strategy;
  strategy.inner_ring = nodes.inner_ring, strategy.ulysses_degree = nodes.ulysses_degree;
  strategy.balance = parse_balance(balance);
  return {problem, first_ranks(nodes.cp), strategy, true};
}

bool has_step(const Plan& plan, const std::string& label) {
  for (const StepRef& ref : steps_of(plan)) {
    if (ref.step->label == label) return true;
  }
  return false;
}

class DoubleRing : public ::testing::TestWithParam<Nodes> {};

TEST_P(DoubleRing, HasEveryOuterStepOnEveryRank) {
  AttentionProblem problem;
  problem.q_len = problem.kv_len = 8 * GetParam().cp;
  problem.q_heads = problem.kv_heads = 2;  // every query sees every key
  const AttentionRequest request = request_of(GetParam(), problem, "contiguous");
  for (const Plan& forward : attention_plans(request, AttentionPass::forward)) {
    for (int step = 1; step < GetParam().count(); ++step)
      EXPECT_TRUE(has_step(forward, str("outer k, v of step ", step))) << "rank " << forward.self;
    EXPECT_FALSE(has_step(forward, str("outer k, v of step ", GetParam().count())));
  }
  for (const Plan& backward : attention_plans(request, AttentionPass::backward)) {
    for (int step = 1; step < GetParam().count(); ++step) {
      EXPECT_TRUE(has_step(backward, str("outer k, v of step ", step))) << "rank " << backward.self;
      EXPECT_TRUE(has_step(backward, str("dk, dv of outer step ", step))) << "rank " << backward.self;
    }
  }
}

// All masks whose last outer step has work, and one, the window, in which it has none.
TEST_P(DoubleRing, EqualsOneDevice) {
  enum class Mask { none, causal, window, documents };
  for (const Mask mask : {Mask::none, Mask::causal, Mask::window, Mask::documents}) {
    AttentionProblem problem;
    problem.q_len = problem.kv_len = 4 * GetParam().cp + 1;
    problem.q_heads = 4, problem.kv_heads = 2, problem.head_dim = 4, problem.v_head_dim = 3;
    problem.causal = mask == Mask::causal;
    if (mask == Mask::window) problem.window = 3;
    if (mask == Mask::documents) problem.cu_seqlens = {0, problem.kv_len / 2 + 1, problem.kv_len};
    const sim::AttentionTestData data(problem, 1);
    sim::AttentionRunOptions options;
    options.backward = true;
    for (const char* balance : {"contiguous", "head_tail", "striped:1"}) {
      AttentionRequest request = request_of(GetParam(), problem, balance);
      for (const bool send_empty : {false, true}) {
        request.strategy.send_empty = send_empty;
        EXPECT_EQ(findings(sim::run_attention(data, request, options)), "")
            << to_string(problem) << " by " << to_string(request.strategy);
      }
    }
  }
}

// In two bytes, with fused kernels, whose parts come together in other steps.
TEST_P(DoubleRing, EqualsOneDeviceOnAGpusTarget) {
  AttentionProblem problem;
  problem.q_len = problem.kv_len = 8 * GetParam().cp;
  problem.q_heads = 4, problem.kv_heads = 2, problem.head_dim = problem.v_head_dim = 8;
  problem.dtype = DType::bf16;
  sim::AttentionRunOptions options;
  options.backward = true, options.target = gpu_target("sm90");
  for (const bool causal : {false, true}) {
    problem.causal = causal;
    const sim::AttentionTestData data(problem, 1);
    for (const bool narrow : {false, true}) {
      AttentionRequest request = request_of(GetParam(), problem, "head_tail");
      request.strategy.input_dtype_gradients = narrow;
      EXPECT_EQ(findings(sim::run_attention(data, request, options)), "")
          << to_string(problem) << " by " << to_string(request.strategy);
    }
  }
}

const Nodes kNodes[] = {{4, 2}, {6, 2}, {6, 3}, {8, 2}, {9, 3}, {12, 2, 2}};

// Each rank receives every other rank's block once. Gradients of a block visit the others of its node, and
// those of each other node, from where the node's part comes straight home: as many steps as other ranks.
TEST(DoubleRingBytes, FollowTheClosedFormula) {
  for (const Nodes& nodes : kNodes) {
    if (nodes.ulysses_degree > 1) continue;  // which adds bytes of its own
    SCOPED_TRACE(::testing::PrintToString(nodes));
    AttentionProblem problem;
    problem.q_len = problem.kv_len = 8 * nodes.cp;
    problem.q_heads = 4, problem.kv_heads = 2, problem.head_dim = problem.v_head_dim = 8;
    const std::int64_t kv = 2 * 8 * 2 * 8 * 4, peers = nodes.cp - 1;
    sim::AttentionRunOptions options;
    options.backward = true;
    const sim::AttentionRun run = sim::run_attention(sim::AttentionTestData(problem, 1),
                                                     request_of(nodes, problem, "contiguous"), options);
    EXPECT_EQ(findings(run), "");
    EXPECT_EQ(run.forward.bytes_received_max, peers * kv);
    EXPECT_EQ(run.forward.bytes_received, nodes.cp * peers * kv);
    EXPECT_EQ(run.backward.bytes_received, nodes.cp * 2 * peers * kv);
  }
}

INSTANTIATE_TEST_SUITE_P(Table, DoubleRing, ::testing::ValuesIn(kNodes), [](const auto& tested) {
  const Nodes& nodes = tested.param;
  return str(nodes.count(), "NodesOf", nodes.inner_ring, nodes.ulysses_degree > 1 ? "Ulysses" : "");
});

}  // namespace
}  // namespace cp::testing

// The bounds of attention runs: right results are within them, results that are wrong by a little more are
// not.
#include "sim/proof/run/attention_tolerance.h"

#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "sim/proof/run/attention_run.h"
#include "tests/support/values.h"

namespace cp::testing {
namespace {

TEST(TensorTolerance, HoldsUpToTheBoundAndNotAbove) {
  const sim::TensorTolerance tolerance{{0.25, 0}, 0.5, 0.0625};
  EXPECT_EQ(tolerance.at(0, -1), 0.75);
  EXPECT_EQ(tolerance.at(0, 0), 0.3125);  // the least step
  EXPECT_TRUE(tolerance.holds(0, 1, 1.75));
  EXPECT_TRUE(tolerance.holds(0, 1, 0.25));
  EXPECT_FALSE(tolerance.holds(0, 1, 1.75 + 0x1p-50));
  EXPECT_FALSE(tolerance.holds(0, 1, 0.25 - 0x1p-50));
}

TEST(TensorTolerance, OfARowWithoutErrorIsExact) {
  const sim::TensorTolerance tolerance{{0.25, 0}, 0.5, 0.0625};
  EXPECT_TRUE(tolerance.holds(1, 0, 0));
  EXPECT_FALSE(tolerance.holds(1, 0, 1e-300));
}

TEST(TensorTolerance, HoldsForEqualInfinitiesAndForNoNaN) {
  const sim::TensorTolerance tolerance{{0.25}, 0.5, 0};
  EXPECT_TRUE(tolerance.holds(0, -kInfinity, -kInfinity));
  EXPECT_FALSE(tolerance.holds(0, -kInfinity, 0));
  EXPECT_FALSE(tolerance.holds(0, 0, -kInfinity));
  EXPECT_FALSE(tolerance.holds(0, 0, std::nan("")));
  EXPECT_FALSE(tolerance.holds(0, -kInfinity, std::nan("")));
}

// ---- whole runs ----

using Values = std::vector<double>;

AttentionProblem example(DType dtype) {
  AttentionProblem problem;
  problem.q_len = problem.kv_len = 96;
  problem.q_heads = 4, problem.kv_heads = 2;
  problem.head_dim = 32, problem.v_head_dim = 16;
  problem.causal = true;
  problem.dtype = dtype;
  return problem;
}

AttentionRequest on_four_ranks(const AttentionProblem& problem, const char* strategy) {
  return {problem, {0, 1, 2, 3}, named_strategy({strategy, {}, {}}, problem, 4), true};
}

// All scores too large by the given part.
void scale_scores(std::vector<Plan>& plans, double by) {
  for (Plan& plan : plans) {
    for (Segment& segment : plan.segments) {
      const auto scale = [&](Step& step) {
        Kernel* kernel = std::get_if<Kernel>(&step.work);
        if (kernel == nullptr) return;
        if (auto* forward = std::get_if<AttentionForward>(kernel)) forward->softmax_scale *= 1 + by;
        if (auto* backward = std::get_if<AttentionBackward>(kernel)) backward->softmax_scale *= 1 + by;
      };
      if (Step* step = std::get_if<Step>(&segment)) {
        scale(*step);
      } else {
        for (Step& inner : std::get<Repeat>(segment).steps) scale(inner);
      }
    }
  }
}

struct Wrong {
  AttentionPass pass = AttentionPass::forward;
  double by = 0;
};

sim::AttentionRun run_wrong(const sim::AttentionTestData& data, const AttentionRequest& request,
                            Wrong wrong) {
  std::vector<Plan> forward = attention_plans(request, AttentionPass::forward),
                    backward = attention_plans(request, AttentionPass::backward);
  scale_scores(wrong.pass == AttentionPass::forward ? forward : backward, wrong.by);
  sim::AttentionRunOptions options;
  options.backward = options.keep_results = true;
  return sim::run_attention(data, request, forward, backward, options);
}

// The largest distance of two results, in bounds of the element.
double distance(const Values& a, const Values& b, const sim::TensorTolerance& tolerance) {
  const std::size_t dim = a.size() / tolerance.rows.size();
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] != b[i]) most = std::max(most, std::abs(a[i] - b[i]) / tolerance.at(i / dim, b[i]));
  }
  return most;
}

class Bounds : public ::testing::TestWithParam<const char*> {};

// A scale that is wrong by so little that the result is off by half a bound passes, by one and a half is
// found.
TEST_P(Bounds, TellAResultThatIsJustWrongFromARightOne) {
  const sim::AttentionTestData data(example(DType::f32), 1);
  const AttentionRequest request = on_four_ranks(data.problem(), GetParam());
  const sim::AttentionTolerances tolerances = sim::attention_tolerances(data, request, true);
  struct Case {
    const char* tensor;
    AttentionPass pass;
    const Values& expected;
    Values sim::AttentionResults::*result;
    const sim::TensorTolerance& tolerance;
  };
  const std::vector<Case> cases = {
      {"out", AttentionPass::forward, data.out(), &sim::AttentionResults::out, tolerances.out},
      {"lse", AttentionPass::forward, data.lse(), &sim::AttentionResults::lse, tolerances.lse},
      {"dq", AttentionPass::backward, data.dq(), &sim::AttentionResults::dq, tolerances.dq},
      {"dk", AttentionPass::backward, data.dk(), &sim::AttentionResults::dk, tolerances.dk},
      {"dv", AttentionPass::backward, data.dv(), &sim::AttentionResults::dv, tolerances.dv}};
  const sim::AttentionResults right = run_wrong(data, request, {}).results;
  for (const Case& c : cases) {
    const double rounding = distance(right.*c.result, c.expected, c.tolerance);
    EXPECT_LT(rounding, 0.4) << c.tensor;
    EXPECT_GT(rounding, 0.005) << c.tensor << ": the bounds are of no use, over 200 times what happens";
    constexpr double kStep = 0x1p-10;  // far above the roundings, and still linear
    const double effect =
        distance(run_wrong(data, request, {c.pass, kStep}).results.*c.result, right.*c.result, c.tolerance);
    for (const double bounds : {0.5, 1.5}) {
      const sim::AttentionRun run = run_wrong(data, request, {c.pass, kStep * bounds / effect});
      for (const sim::TensorError& error : run.errors) {
        if (error.tensor != c.tensor) continue;
        EXPECT_EQ(error.holds(), bounds < 1) << c.tensor << ": " << error.finding;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Strategies, Bounds, ::testing::Values("ring", "pass_q", "ulysses", "all_gather"));

// Each row has a bound of its own.
TEST(AttentionTolerances, FollowTheRows) {
  const sim::AttentionTestData data(example(DType::f32), 1);
  const sim::AttentionTolerances of_one = sim::attention_tolerances(
      data, {data.problem(), {0}, named_strategy({"ring", {}, {}}, data.problem(), 1), true}, true);
  const sim::AttentionTolerances of_four =
      sim::attention_tolerances(data, on_four_ranks(data.problem(), "ring"), true);
  for (std::size_t row = 0; row < of_one.out.rows.size(); ++row) {
    EXPECT_LT(of_one.out.rows[row], of_four.out.rows[row]);  // parts are merged
    EXPECT_LT(of_one.dq.rows[row], of_four.dq.rows[row]);
  }
  EXPECT_LT(of_one.dv.rows[95], of_one.dv.rows[0]);  // the last key is seen by one query
}

// What travels or is merged in the inputs' dtype may err by its roundings.
TEST(AttentionTolerances, GrowWithNarrowTransport) {
  const sim::AttentionTestData data(example(DType::bf16), 1);
  AttentionRequest request = on_four_ranks(data.problem(), "ring");
  const sim::AttentionTolerances wide = sim::attention_tolerances(data, request, true);
  request.strategy.input_dtype_gradients = true;
  const sim::AttentionTolerances gradients = sim::attention_tolerances(data, request, true);
  EXPECT_EQ(wide.out.rows, gradients.out.rows);
  EXPECT_GT(gradients.dk.rows[0], wide.dk.rows[0]);
  request.strategy.input_dtype_merge = true;
  const sim::AttentionTolerances merges = sim::attention_tolerances(data, request, true);
  EXPECT_GT(merges.out.rows[0], wide.out.rows[0]);
  EXPECT_EQ(merges.lse.rows, wide.lse.rows);
}

}  // namespace
}  // namespace cp::testing

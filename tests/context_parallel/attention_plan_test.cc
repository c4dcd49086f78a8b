// The shape of attention plans: what runs beside what, digests, and requests that make no sense.
#include "shared/context_parallel/attention_plan.h"

#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "shared/plan/plan.h"

namespace cp::testing {
namespace {

using ::testing::HasSubstr;

AttentionRequest ring_request(int cp) {
  AttentionRequest request;
  request.problem.q_len = request.problem.kv_len = 64;
  request.problem.q_heads = 4, request.problem.kv_heads = 2;
  request.problem.causal = true;
  request.strategy.balance = parse_balance("head_tail");
  request.ranks.resize(static_cast<std::size_t>(cp));
  std::iota(request.ranks.begin(), request.ranks.end(), 0);
  return request;
}

// Whether `after` has to wait for `before`: by the order of a stream, or by edges.
bool ordered(const Plan& plan, StepId before, StepId after) {
  const std::vector<StepRef> steps = steps_of(plan);
  std::vector<bool> reached(steps.size());
  const std::function<void(StepId)> visit = [&](StepId id) {
    if (reached[static_cast<std::size_t>(id)]) return;
    reached[static_cast<std::size_t>(id)] = true;
    const Step& step = *steps[static_cast<std::size_t>(id)].step;
    for (const Edge& edge : step.after) visit(edge.step);
    for (StepId earlier = id - 1; earlier >= 0; --earlier) {
      if (steps[static_cast<std::size_t>(earlier)].step->stream == step.stream) {
        visit(earlier);
        break;
      }
    }
  };
  visit(after);
  return reached[static_cast<std::size_t>(before)];
}

StepId step_named(const Plan& plan, const std::string& label) {
  for (const StepRef& ref : steps_of(plan)) {
    if (ref.step->label == label) return ref.id;
  }
  ADD_FAILURE() << "no step \"" << label << "\" in\n" << to_text(plan);
  return 0;
}

TEST(RingPlan, TheNextTransferAndThisAttentionAreUnordered) {
  for (const AttentionPass pass : {AttentionPass::forward, AttentionPass::backward}) {
    const Plan plan = attention_plan(ring_request(8), pass, 3);
    const std::string attention =
        pass == AttentionPass::forward ? "attention of step " : "attention backward of step ";
    for (int step = 0; step + 1 < 8; ++step) {
      const StepId transfer = step_named(plan, "k, v of step " + std::to_string(step + 1));
      const StepId compute = step_named(plan, attention + std::to_string(step));
      EXPECT_FALSE(ordered(plan, transfer, compute)) << "step " << step;
      EXPECT_FALSE(ordered(plan, compute, transfer)) << "step " << step;
      EXPECT_TRUE(ordered(plan, transfer, step_named(plan, attention + std::to_string(step + 1))));
    }
  }
}

TEST(AttentionPlan, IsAPureFunctionOfItsInputs) {
  const AttentionRequest request = ring_request(4);
  const std::vector<Plan> plans = attention_plans(request, AttentionPass::backward);
  for (const Plan& plan : plans) {
    EXPECT_EQ(plan, attention_plan(request, AttentionPass::backward, plan.self));
    EXPECT_EQ(plan.inputs, plans.front().inputs);
    EXPECT_EQ(parse_plan(to_text(plan)), plan);
  }
  AttentionRequest other = request;
  other.problem.window = 5;
  EXPECT_NE(attention_plans(other, AttentionPass::backward).front().inputs, plans.front().inputs);
  other = request, other.options.gradients.dq = false;
  EXPECT_NE(attention_plans(other, AttentionPass::backward).front().inputs, plans.front().inputs);
  other = request, other.options.lse = LsePlace::computed;
  EXPECT_NE(attention_plans(other, AttentionPass::backward).front().inputs, plans.front().inputs);
  other = request, other.problem.batch = 2, other.problem.cu_seqlens_of_entry = {{0, 64}, {0, 8, 64}};
  const Digest inputs = attention_plans(other, AttentionPass::backward).front().inputs;
  other.problem.cu_seqlens_of_entry = {{0, 8, 64}, {0, 64}};
  EXPECT_NE(attention_plans(other, AttentionPass::backward).front().inputs, inputs);
}

TEST(AttentionPlan, TakesAndGivesWhatIsAskedFor) {
  const auto names = [](const AttentionRequest& request, AttentionPass pass) {
    std::vector<std::string> result;
    for (const Buffer& buffer : attention_plan(request, pass, 1).buffers) {
      if (buffer.kind != BufferKind::temporary)
        result.push_back((buffer.kind == BufferKind::output ? "+" : "") + buffer.name);
    }
    return result;
  };
  using ::testing::UnorderedElementsAre;
  constexpr AttentionPass kForward = AttentionPass::forward, kBackward = AttentionPass::backward;
  AttentionRequest request = ring_request(4);
  EXPECT_THAT(names(request, kForward), UnorderedElementsAre("q", "k", "v", "+out", "+lse"));
  EXPECT_THAT(names(request, kBackward),
              UnorderedElementsAre("dout", "q", "out", "lse", "k", "v", "+dq", "+dk", "+dv"));
  request.options.gradients = {.dk = false, .dv = false};
  EXPECT_THAT(names(request, kBackward), UnorderedElementsAre("dout", "q", "out", "lse", "k", "v", "+dq"));
  request = ring_request(4), request.strategy.ulysses_degree = 2;
  EXPECT_THAT(names(request, kForward),
              UnorderedElementsAre("q", "k", "v", "+out", "+lse", "+saved_q", "+saved_k", "+saved_v",
                                   "+saved_out", "+saved_lse"));
  EXPECT_THAT(names(request, kBackward), UnorderedElementsAre("dout", "saved_q", "saved_out", "saved_lse",
                                                              "saved_k", "saved_v", "+dq", "+dk", "+dv"));
  request.options.lse = LsePlace::computed;
  EXPECT_THAT(names(request, kForward), UnorderedElementsAre("q", "k", "v", "+out", "+lse", "+saved_q",
                                                             "+saved_k", "+saved_v", "+saved_out"));
  EXPECT_THAT(names(request, kBackward), UnorderedElementsAre("dout", "saved_q", "saved_out", "lse",
                                                              "saved_k", "saved_v", "+dq", "+dk", "+dv"));
  // At home with all heads of the rank's own rows, where it was computed with some heads of more rows.
  const auto lse_numel = [&](LsePlace place) {
    request.options.lse = place;
    for (const Buffer& buffer : attention_plan(request, kForward, 1).buffers)
      if (buffer.name == "lse") return buffer.numel;
    return std::int64_t{0};
  };
  EXPECT_EQ(lse_numel(LsePlace::home), 4 * 16);
  EXPECT_EQ(lse_numel(LsePlace::computed), 2 * 32);
}

TEST(AttentionPlan, GradientsAreText) {
  EXPECT_EQ(to_string(Gradients{}), "dq,dk,dv");
  EXPECT_EQ(parse_gradients("dv, dq"), (Gradients{true, false, true}));
  const auto message = [](const std::string& text) -> std::string {
    try {
      parse_gradients(text);
    } catch (const InvalidInput& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(message("dq,dx"), HasSubstr("'dx' is not a gradient; use some of dq,dk,dv"));
  EXPECT_THAT(message(""), HasSubstr("use some of dq,dk,dv"));
  EXPECT_THAT(message("dq,dq"), HasSubstr("dq comes twice"));
}

TEST(AttentionPlan, NonsenseIsInvalidInput) {
  const auto message = [](const AttentionRequest& request, Rank self) -> std::string {
    try {
      attention_plan(request, AttentionPass::forward, self);
    } catch (const InvalidInput& error) {
      return error.what();
    }
    return "no error";
  };
  AttentionRequest request = ring_request(4);
  EXPECT_THAT(message(request, 9), HasSubstr("rank 9 is not one of the 4 cp ranks"));
  request.strategy.ulysses_degree = 3;
  EXPECT_THAT(message(request, 0), HasSubstr("ulysses_degree=3 does not divide cp=4; use 2"));
  request = ring_request(4);
  request.ranks[1] = 0;
  EXPECT_THAT(message(request, 0), HasSubstr("a rank comes twice"));
  request = ring_request(4), request.options.gradients = {false, false, false};
  EXPECT_THAT(message(request, 0), HasSubstr("a backward pass needs at least one gradient"));
}

}  // namespace
}  // namespace cp::testing

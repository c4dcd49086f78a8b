// What a step of a recurrence must be: shapes, dtypes, documents, workspace.
#include "shared/plan/recurrence_rules.h"

#include <functional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "shared/plan/step_rules.h"

namespace cp {
namespace {

using ::testing::HasSubstr;

// One batch entry of five rows; two key heads of three elements, four value heads of two.
struct RecurrenceSteps {
  Plan plan;
  RecurrenceSteps() {
    plan.self = 5;
    plan.target = host_target();
    plan.streams = {"s"};
  }
  View of(Shape shape, DType dtype = DType::f32) {
    Buffer buffer;
    buffer.name = str("b", plan.buffers.size()), buffer.kind = BufferKind::inout;
    buffer.dtype = dtype, buffer.numel = numel(shape);
    plan.buffers.push_back(buffer);
    return dense_view(static_cast<BufferId>(plan.buffers.size() - 1), 0, std::move(shape));
  }
  View keys() { return of({1, 5, 2, 3}); }
  View values() { return of({1, 5, 4, 2}); }
  View numbers() { return of({1, 5, 4}); }
  View state() { return of({1, 4, 3, 2}); }
  View square(std::int64_t n) { return of({1, 4, n, n}); }

  RecurrenceForward forward() {
    return {keys(),  keys(),   values(), numbers(), numbers(),
            state(), values(), {2, 4},   1,         RecurrenceRule::delta};
  }
  RecurrenceSummary summary(std::int64_t n) {
    return {keys(), values(), numbers(), numbers(), state(), square(n), RecurrenceRule::delta};
  }
  RecurrenceBackward backward(std::int64_t workspace) {
    return {keys(),
            keys(),
            values(),
            numbers(),
            numbers(),
            state(),
            values(),
            state(),
            keys(),
            keys(),
            values(),
            numbers(),
            numbers(),
            of({workspace}),
            {},
            1,
            RecurrenceRule::decay};
  }
  std::string error(Kernel kernel) const {
    try {
      validate_step(plan, Step{0, std::move(kernel), {}, ""}, 1);
    } catch (const InvalidInput& error) {
      return error.what();
    }
    return "";
  }
};

// The error of a step that was changed.
template <class Op>
std::string changed(RecurrenceSteps& steps, Op op, const std::function<void(Op&)>& change) {
  change(op);
  return steps.error(op);
}

TEST(RecurrenceRules, Forward) {
  RecurrenceSteps steps;
  using Op = RecurrenceForward;
  const auto error = [&](const std::function<void(Op&)>& change) {
    return changed<Op>(steps, steps.forward(), change);
  };
  EXPECT_EQ(error([](Op&) {}), "");
  EXPECT_EQ(error([](Op& op) { op.state = View{}; }), "");
  EXPECT_EQ(error([](Op& op) { op.starts = {}; }), "");
  EXPECT_EQ(error([&](Op& op) { op.final_state = steps.state(); }), "");
  EXPECT_EQ(error([](Op& op) { op.final_state = op.state; }), "");
  EXPECT_EQ(error([&](Op& op) { op.final_state = steps.state(), op.state = View{}; }), "");
  EXPECT_THAT(error([&](Op& op) { op.final_state = steps.square(3); }), HasSubstr("final_state is"));
  EXPECT_THAT(error([&](Op& op) {  // in place but for a column
                op.state = steps.square(3), op.state.shape[3] = 2;
                op.final_state = op.state, ++op.final_state.offset;
              }),
              HasSubstr("a kernel's output is its own"));
  EXPECT_THAT(error([](Op& op) { op.q.shape[2] = 1; }), HasSubstr("but the shape 1x5x2x3 is needed"));
  EXPECT_THAT(error([](Op& op) { op.v.shape[2] = 3; }), HasSubstr("but the shape 1x5x4x2 is needed"));
  EXPECT_THAT(error([&](Op& op) {
                op.k = steps.of({1, 5, 3, 3}), op.q = steps.of({1, 5, 3, 3});
              }),
              HasSubstr("k has 3 heads, which do not divide the 4 value heads"));
  EXPECT_THAT(error([&](Op& op) {
                op.beta = steps.of({1, 5, 4}, DType::bf16);
              }),
              HasSubstr("beta is bf16; it is always f32"));
  EXPECT_THAT(error([&](Op& op) { op.v = steps.of({1, 5, 4, 2}, DType::bf16); }), HasSubstr("use a cast"));
  EXPECT_THAT(error([](Op& op) { op.state.shape[2] = 2; }), HasSubstr("but the shape 1x4x3x2 is needed"));
  EXPECT_THAT(error([](Op& op) { op.starts = {0}; }), HasSubstr("a document starts at row 0"));
  EXPECT_THAT(error([](Op& op) { op.starts = {3, 3}; }), HasSubstr("starts ascend"));
  EXPECT_THAT(error([](Op& op) { op.starts = {5}; }), HasSubstr("of 5 rows"));
  EXPECT_THAT(error([](Op& op) { op.scale = std::numeric_limits<double>::infinity(); }),
              HasSubstr("is no number"));
  EXPECT_THAT(error([](Op& op) { op.out = op.v; }), HasSubstr("a kernel's output is its own"));
}

TEST(RecurrenceRules, SummaryAndJoin) {
  RecurrenceSteps steps;
  EXPECT_EQ(steps.error(steps.summary(3)), "");
  EXPECT_THAT(steps.error(steps.summary(1)), HasSubstr("but the shape 1x4x3x3 is needed"));
  EXPECT_EQ(changed<RecurrenceSummary>(steps, steps.summary(1),
                                       [](RecurrenceSummary& op) { op.rule = RecurrenceRule::decay; }),
            "");
  for (const std::int64_t n : {1, 3}) {
    EXPECT_EQ(steps.error(RecurrenceJoin{steps.square(n), steps.state(), steps.state(), true, true}), "");
    EXPECT_EQ(steps.error(RecurrenceJoin{steps.square(n), steps.square(3), steps.square(3), false, false}),
              "");
  }
  EXPECT_THAT(steps.error(RecurrenceJoin{steps.square(2), steps.state(), steps.state(), true, false}),
              HasSubstr("but the shape 1x4x3x3 is needed"));
  EXPECT_THAT(steps.error(RecurrenceJoin{steps.square(3), steps.state(), steps.square(3), true, false}),
              HasSubstr("but the shape 1x4x3x2 is needed"));
  const View state = steps.state();
  EXPECT_THAT(steps.error(RecurrenceJoin{steps.square(3), state, state, true, false}),
              HasSubstr("share memory"));
}

TEST(RecurrenceRules, Backward) {
  RecurrenceSteps steps;
  using Op = RecurrenceBackward;
  const std::int64_t least = recurrence_workspace_numel(5, 2, 3, 2);
  EXPECT_EQ(steps.error(steps.backward(least)), "");
  EXPECT_EQ(changed<Op>(steps, steps.backward(least), [](Op& op) { op.state = op.dstate = View{}; }), "");
  EXPECT_THAT(steps.error(steps.backward(least - 1)),
              HasSubstr(str("a key head needs ", least, " elements")));
  EXPECT_THAT(changed<Op>(steps, steps.backward(least), [](Op& op) { op.dk.shape[3] = 2; }),
              HasSubstr("dk is"));
  EXPECT_THAT(changed<Op>(steps, steps.backward(least),
                          [&](Op& op) {
                            op.dv = steps.of({1, 5, 4, 2}, DType::f16);
                          }),
              HasSubstr("use a cast"));
}

}  // namespace
}  // namespace cp

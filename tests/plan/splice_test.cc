// Plans made of other plans: what is spliced moves the same data as the part alone.
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "shared/context_parallel/attention_plan.h"
#include "shared/plan/builder.h"
#include "shared/plan/check.h"
#include "sim/fabric/fabric.h"
#include "tests/support/hand_plans.h"
#include "tests/support/values.h"

namespace cp {
namespace {

using testing::BufferValues;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr int kRanks = 4;

std::vector<Plan> attention(const std::string& strategy) {
  AttentionRequest request;
  request.problem.q_len = request.problem.kv_len = 32;
  request.problem.q_heads = request.problem.kv_heads = 4;
  request.problem.head_dim = request.problem.v_head_dim = 4;
  request.problem.causal = true;
  request.ranks = {0, 1, 2, 3};
  request.strategy = named_strategy({strategy, {}, {}}, request.problem, kRanks);
  return attention_plans(request, AttentionPass::forward);
}

BufferValues inputs_of(const Plan& plan, std::uint64_t seed) {
  BufferValues values;
  for (const Buffer& buffer : plan.buffers) {
    if (buffer.kind != BufferKind::input) continue;
    seed = seed * 31 + 7;
    values[buffer.name] = testing::small_fractions(buffer.numel, seed);
  }
  return values;
}

std::vector<BufferValues> run(const std::vector<Plan>& plans, const std::vector<BufferValues>& inputs) {
  check(plans);
  testing::PlanCase plan_case;
  plan_case.plans = plans;
  plan_case.inputs = inputs;
  std::vector<BufferValues> outputs(plans.size());
  sim::Fabric fabric(static_cast<int>(plans.size()));
  fabric.run([&](Rank rank, Device& device) {
    outputs[static_cast<std::size_t>(rank)] = run_plan_case(plan_case, rank, device);
  });
  return outputs;
}

class Splice : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Strategies, Splice,
                         ::testing::Values("ring", "double_ring", "all_gather", "ulysses", "pass_q",
                                           "need_only"));

// One buffer holds all windows; inputs are copied to them and outputs from them.
TEST_P(Splice, BetweenCopiesEqualsThePartAlone) {
  const std::vector<Plan> parts = attention(GetParam());
  std::vector<Plan> plans;
  std::vector<BufferValues> inputs;
  for (const Plan& part : parts) {
    PlanBuilder builder(part.self, host_target());
    const StreamId compute = builder.stream("compute");
    constexpr std::int64_t kGap = 5;
    std::int64_t all = kGap;
    for (const Buffer& buffer : part.buffers) all += buffer.numel + kGap;
    const BufferId windows = builder.temporary("windows", DType::f32, all);
    std::map<std::string, View> bindings;
    std::vector<std::pair<View, View>> copies;
    std::int64_t at = kGap;
    for (const Buffer& buffer : part.buffers) {
      if (buffer.kind == BufferKind::temporary) continue;
      const View window = flat_view(windows, at, buffer.numel);
      bindings[buffer.name] = flat_view(windows, at, buffer.numel + kGap);  // larger does no harm
      at += buffer.numel + kGap;
      if (buffer.kind == BufferKind::input) {
        const BufferId from = builder.input(buffer.name, buffer.dtype, buffer.numel);
        builder.add(compute, Copy{flat_view(from, 0, buffer.numel), window});
      } else {
        const BufferId to = builder.output(buffer.name, buffer.dtype, buffer.numel);
        copies.emplace_back(window, flat_view(to, 0, buffer.numel));
      }
    }
    builder.splice(part, bindings, "attention/");
    for (const auto& [in, out] : copies) builder.add(compute, Copy{in, out});
    plans.push_back(std::move(builder).build({1, 2}));
    inputs.push_back(inputs_of(part, static_cast<std::uint64_t>(part.self)));
    EXPECT_EQ(plans.back().groups, part.groups);
    for (const Buffer& buffer : plans.back().buffers) {
      if (buffer.kind != BufferKind::temporary || buffer.name == "windows") continue;
      EXPECT_EQ(buffer.name.substr(0, 10), "attention/");
    }
  }
  EXPECT_EQ(run(plans, inputs), run(parts, inputs));
}

// A stack of layers: windows move from one layer to the next.
TEST_P(Splice, InsideARepeatEqualsThePartForEachLayer) {
  constexpr std::int64_t kLayers = 3;
  const std::vector<Plan> parts = attention(GetParam());
  std::vector<Plan> plans;
  for (const Plan& part : parts) {
    PlanBuilder builder(part.self, host_target());
    std::map<std::string, View> bindings;
    for (const Buffer& buffer : part.buffers) {
      if (buffer.kind == BufferKind::temporary) continue;
      const BufferId stack = buffer.kind == BufferKind::input
                                 ? builder.input(buffer.name, buffer.dtype, kLayers * buffer.numel)
                                 : builder.output(buffer.name, buffer.dtype, kLayers * buffer.numel);
      bindings[buffer.name] = flat_view(stack, 0, buffer.numel, {buffer.numel, 0, 0});
    }
    builder.begin_repeat(kLayers);
    builder.splice(part, bindings);
    builder.end_repeat();
    plans.push_back(std::move(builder).build({1, 2}));
  }
  std::vector<BufferValues> inputs(kRanks), expected(kRanks);
  for (std::uint64_t layer = 0; layer < kLayers; ++layer) {
    std::vector<BufferValues> own;
    for (const Plan& part : parts)
      own.push_back(inputs_of(part, 10 * layer + static_cast<std::uint64_t>(part.self)));
    const std::vector<BufferValues> outputs = run(parts, own);
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      for (const auto& [name, values] : own[rank])
        inputs[rank][name].insert(inputs[rank][name].end(), values.begin(), values.end());
      for (const auto& [name, values] : outputs[rank])
        expected[rank][name].insert(expected[rank][name].end(), values.begin(), values.end());
    }
  }
  EXPECT_EQ(run(plans, inputs), expected);
}

// ---- parts by hand ----

struct Part {
  explicit Part(Rank self = 0) : builder(self, host_target()) {}
  PlanBuilder builder;
  BufferId in = builder.input("in", DType::f32, 12), out = builder.output("out", DType::f32, 12);
  Plan build() { return std::move(builder).build({}); }
};
Plan copying_part() {
  Part part;
  part.builder.add(part.builder.stream("s"), Copy{flat_view(part.in, 3, 4), flat_view(part.out, 0, 4)},
                   "copy");
  return part.build();
}
Plan repeating_part() {
  Part part;
  part.builder.begin_repeat(3);
  part.builder.add(part.builder.stream("s"),
                   Copy{flat_view(part.in, 0, 4, {4, 0, 0}), flat_view(part.out, 8, 4, {-4, 0, 0})});
  part.builder.end_repeat();
  return part.build();
}

struct Whole {
  PlanBuilder builder{0, host_target()};
  BufferId x = builder.inout("x", DType::f32, 100), y = builder.inout("y", DType::f32, 100),
           h = builder.inout("h", DType::bf16, 100);
  Copy copy_of(const Plan& plan) {
    return std::get<Copy>(std::get<Kernel>(steps_of(plan).back().step->work));
  }
};

TEST(SpliceByHand, WindowsShiftViews) {
  Whole whole;
  const StreamId other = whole.builder.stream("other");
  whole.builder.add(other, Fill{flat_view(whole.y, 40, 1), 0});
  whole.builder.splice(copying_part(),
                       {{"in", flat_view(whole.x, 20, 12)}, {"out", flat_view(whole.y, 40, 12)}});
  const Plan plan = std::move(whole.builder).build({});
  EXPECT_EQ(whole.copy_of(plan), (Copy{flat_view(whole.x, 23, 4), flat_view(whole.y, 40, 4)}));
  const Step& step = *steps_of(plan).back().step;
  EXPECT_EQ(plan.streams[static_cast<std::size_t>(step.stream)], "s");
  EXPECT_EQ(step.label, "copy");
  EXPECT_EQ(step.after, (std::vector<Edge>{{0, 0}}));  // derived anew
}

TEST(SpliceByHand, WindowsMoveWithTheRepeatAroundThem) {
  Whole whole;
  whole.builder.begin_repeat(4);
  whole.builder.splice(copying_part(), {{"in", flat_view(whole.x, 20, 12, {12, 0, 0})},
                                        {"out", flat_view(whole.y, 40, 12, {12, 2, 1})}});
  whole.builder.end_repeat();
  const Plan plan = std::move(whole.builder).build({});
  EXPECT_EQ(whole.copy_of(plan),
            (Copy{flat_view(whole.x, 23, 4, {12, 0, 0}), flat_view(whole.y, 40, 4, {12, 2, 1})}));
}

TEST(SpliceByHand, ARepeatKeepsItsOwnAdvance) {
  Whole whole;
  whole.builder.splice(repeating_part(),
                       {{"in", flat_view(whole.x, 20, 12, {30, 0, 1})},  // as in iteration 0
                        {"out", flat_view(whole.y, 40, 12)}});
  const Plan plan = std::move(whole.builder).build({});
  EXPECT_EQ(std::get<Repeat>(plan.segments.back()).count, 3);
  EXPECT_EQ(whole.copy_of(plan),
            (Copy{flat_view(whole.x, 50, 4, {4, 0, 0}), flat_view(whole.y, 48, 4, {-4, 0, 0})}));
}

TEST(SpliceByHand, RefusesWhatDoesNotFit) {
  Whole whole;
  const View in = flat_view(whole.x, 0, 12), out = flat_view(whole.y, 0, 12);
  const auto splice = [&](const Plan& part, const std::map<std::string, View>& bindings) {
    return [&, part, bindings] { whole.builder.splice(part, bindings); };
  };
  const Plan part = copying_part();
  const std::string prefix = "splice of a plan of rank 0: ";
  EXPECT_THAT(splice(part, {{"in", in}}),
              ThrowsMessage<InvalidInput>(
                  prefix + "its buffer out of 12 x f32 has no window; there are windows for in"));
  EXPECT_THAT(
      splice(part, {{"in", in}, {"out", flat_view(whole.y, 4, 11)}}),
      ThrowsMessage<InvalidInput>(HasSubstr(
          prefix + "its buffer out of 12 x f32 does not fit the window y+4[11] of 11 x f32; a window is")));
  EXPECT_THAT(
      splice(part, {{"in", flat_view(whole.h, 0, 12)}, {"out", out}}),
      ThrowsMessage<InvalidInput>(HasSubstr("in of 12 x f32 does not fit the window h+0[12] of 12 x bf16")));
  EXPECT_THAT(splice(part, {{"in", View{whole.x, 0, {12}, {2}, {}}}, {"out", out}}),
              ThrowsMessage<InvalidInput>(HasSubstr("a window is contiguous")));
  EXPECT_THAT(
      splice(part, {{"in", flat_view(9, 0, 12)}, {"out", out}}),
      ThrowsMessage<InvalidInput>(HasSubstr("a window of buffer 9, which is not one of the plan's 3")));
  EXPECT_THAT(splice(part, {{"in", in}, {"out", out}, {"aut", out}}),
              ThrowsMessage<InvalidInput>(HasSubstr("it has no buffer aut that a window")));
  EXPECT_THAT(splice(Part(2).build(), {{"in", in}, {"out", out}}),
              ThrowsMessage<InvalidInput>(
                  "splice of a plan of rank 2 into a plan of rank 0; both must be of one rank"));
  whole.builder.begin_repeat(2);
  EXPECT_THAT(splice(repeating_part(), {{"in", in}, {"out", out}}),
              ThrowsMessage<InvalidInput>(HasSubstr("Repeats do not nest")));
}

}  // namespace
}  // namespace cp

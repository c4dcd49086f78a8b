#include "runtime/planned_work.h"

#include <gtest/gtest.h>

#include "shared/plan/builder.h"

namespace cp::runtime {
namespace {

using std::chrono::milliseconds;

// One rank's attention of `tokens` with 32 heads of 128, as one call that need not be a valid plan.
Plan attention(std::int64_t tokens, AttentionEngine engine, bool backward, std::int64_t window = 0) {
  Plan plan;
  plan.streams = {"compute"};
  plan.buffers.push_back({.name = "x", .dtype = DType::f32, .numel = 1});
  const View rows{0, 0, {1, tokens, 32, 128}, {0, 0, 0, 0}, {}};
  const View small{0, 0, {1}, {0}, {}};
  const MaskSlice slice{0, tokens, 0, tokens, window > 0 ? MaskSlice::Kind::window : MaskSlice::Kind::causal,
                        0, window};
  Kernel kernel;
  if (backward) {
    AttentionBackward op;
    op.q = op.k = op.v = op.dout = op.dq = op.dk = op.dv = rows, op.lse = small;
    op.slices = {slice}, op.engine = engine;
    kernel = op;
  } else {
    AttentionForward op;
    op.q = op.k = op.v = op.out = rows, op.lse = small;
    op.slices = {slice}, op.engine = engine;
    kernel = op;
  }
  plan.segments.emplace_back(Step{.stream = 0, .work = kernel, .after = {}, .label = {}});
  return plan;
}

constexpr std::int64_t kTokens = std::int64_t{128} * 1024;

// 4 * 128 flops for each of 32 * (128 Ki)^2 pairs; reading and writing 4 times 2 GB takes less than a tenth
// of a second.
TEST(PlannedWork, IsTheFlopsOfAttentionAtALowRate) {
  const milliseconds exact = planned_time(attention(kTokens, AttentionEngine::exact, false));
  EXPECT_GT(exact, milliseconds(56'000));
  EXPECT_LT(exact, milliseconds(57'000));
  const milliseconds fused = planned_time(attention(kTokens, AttentionEngine::fused, false));
  EXPECT_GT(fused, milliseconds(14'000));
  EXPECT_LT(fused, milliseconds(15'000));
}

TEST(PlannedWork, OfBackwardIsThatOfEightProducts) {
  const milliseconds backward = planned_time(attention(kTokens, AttentionEngine::exact, true));
  EXPECT_GT(backward, milliseconds(4 * 56'000));
  EXPECT_LT(backward, milliseconds(4 * 57'000));
}

TEST(PlannedWork, OfAWindowIsThatOfItsKeys) {
  const milliseconds window = planned_time(attention(kTokens, AttentionEngine::exact, false, kTokens / 64));
  EXPECT_GT(window, milliseconds(56'000 / 64));
  EXPECT_LT(window, milliseconds(57'000 / 64 + 100));
}

// Of 1,000 steps each: of a product of 1,000 rows, columns and dims, or of 4 MB that are read and written.
Plan thousand(const std::function<void(PlanBuilder&)>& add) {
  PlanBuilder b(0, host_target());
  b.begin_repeat(1'000);
  add(b);
  b.end_repeat();
  return std::move(b).build({});
}

TEST(PlannedWork, OfProductsAndMovesIsTheirTimeAndThatOfTheirLaunch) {
  const auto square = [](BufferId buffer) { return dense_view(buffer, 0, {1'000, 1'000}); };
  EXPECT_EQ(planned_time(thousand([&](PlanBuilder& b) {
              const View x = square(b.input("x", DType::f32, 1'000'000));
              b.add(b.stream("main"), MatMul{x, x, square(b.output("y", DType::f32, 1'000'000)), false});
            })),
            milliseconds(400 + 100 + 120));  // 2e9 flops, 100 us, 12 MB
  EXPECT_EQ(planned_time(thousand([&](PlanBuilder& b) {
              b.add(b.stream("main"), Scale{square(b.inout("x", DType::f32, 1'000'000)), 2});
            })),
            milliseconds(100 + 80));
}

TEST(PlannedWork, OfARepeatInWhichRanksMeetIsOneIterations) {
  EXPECT_EQ(planned_time(thousand([](PlanBuilder& b) {
              const View x = flat_view(b.inout("x", DType::f32, 4), 0, 4);
              for (int i = 0; i < 20; ++i) b.add(b.stream("main"), Scale{x, 2});
              b.add(b.stream("main"), AllReduce{b.group("all", {0, 1}), ReduceOp::sum, x, x});
            })),
            milliseconds(2));
}

TEST(PlannedWork, OfCollectivesAloneIsNone) {
  PlanBuilder b(0, host_target());
  const View x = flat_view(b.inout("x", DType::f32, 1'000'000'000), 0, 1'000'000'000);
  b.add(b.stream("main"), AllReduce{b.group("all", {0, 1}), ReduceOp::sum, x, x});
  EXPECT_EQ(planned_time(std::move(b).build({})), milliseconds(0));
}

}  // namespace
}  // namespace cp::runtime

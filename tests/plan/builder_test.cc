#include "shared/plan/builder.h"

#include <algorithm>
#include <chrono>
#include <functional>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/error.h"
#include "tests/plan/plan_model.h"
#include "tests/plan/random_plan.h"

namespace cp {
namespace {

using Edges = std::vector<Edge>;

Edges edges_of(const Plan& plan, StepId step) {
  return steps_of(plan)[static_cast<std::size_t>(step)].step->after;
}

struct Builder : PlanBuilder {
  Builder() : PlanBuilder(0, host_target()) {}
  StreamId compute = stream("compute"), comm = stream("comm"), extra = stream("extra");
  GroupId ring = group("ring", {0, 1});
  BufferId x = inout("x", DType::f32, 64), y = inout("y", DType::f32, 64), z = inout("z", DType::f32, 64);
  StepId copy(StreamId on, View in, View out) { return add(on, Copy{std::move(in), std::move(out)}); }
  Plan build() { return std::move(*this).PlanBuilder::build({}); }
};

TEST(PlanBuilder, ReadAfterWriteOnAnotherStreamIsOrdered) {
  Builder b;
  const StepId write = b.add(b.comm, Fill{flat_view(b.x, 0, 8), 1});
  const StepId read = b.copy(b.compute, flat_view(b.x, 7, 8), flat_view(b.y, 0, 8));
  const Plan plan = b.build();
  EXPECT_EQ(edges_of(plan, write), Edges{});
  EXPECT_EQ(edges_of(plan, read), (Edges{{write, 0}}));
}

TEST(PlanBuilder, NeighboursReadersAndOneStreamNeedNoEdge) {
  Builder b;
  b.add(b.comm, Fill{flat_view(b.x, 0, 8), 1});
  b.copy(b.comm, flat_view(b.x, 0, 8), flat_view(b.y, 0, 8));
  b.copy(b.compute, flat_view(b.x, 8, 8), flat_view(b.z, 0, 8));
  b.copy(b.extra, flat_view(b.x, 8, 8), flat_view(b.z, 8, 8));
  const Plan plan = b.build();
  for (StepId step = 0; step < 4; ++step) EXPECT_EQ(edges_of(plan, step), Edges{}) << step;
}

TEST(PlanBuilder, StridedViewsConflictOnlyWhereTheyShareAnElement) {
  Builder b;
  const auto columns = [&](std::int64_t first, std::int64_t count) {
    return View{b.x, first, {8, count}, {8, 1}, {}};
  };
  b.add(b.comm, Fill{columns(0, 3), 1});
  b.add(b.compute, Fill{columns(3, 5), 1});
  b.add(b.extra, Fill{columns(2, 1), 1});
  const Plan plan = b.build();
  EXPECT_EQ(edges_of(plan, 1), Edges{});
  EXPECT_EQ(edges_of(plan, 2), (Edges{{0, 0}}));
}

TEST(PlanBuilder, AnEdgeThatOthersImplyIsNotWritten) {
  Builder b;
  b.add(b.comm, Fill{flat_view(b.x, 0, 8), 1});                   // 0
  b.copy(b.compute, flat_view(b.x, 0, 8), flat_view(b.y, 0, 8));  // 1 after 0
  b.add(b.extra,
        Accumulate{ReduceOp::sum, flat_view(b.x, 0, 8), flat_view(b.y, 0, 8)});  // 2 after 1, so after 0
  const Plan plan = b.build();
  EXPECT_EQ(edges_of(plan, 1), (Edges{{0, 0}}));
  EXPECT_EQ(edges_of(plan, 2), (Edges{{1, 0}}));
}

TEST(PlanBuilder, OfSeveralConflictsOnOneStreamTheLatestCounts) {
  Builder b;
  b.add(b.comm, Fill{flat_view(b.x, 0, 8), 1});
  b.add(b.comm, Fill{flat_view(b.y, 0, 8), 1});
  b.add(b.comm, Fill{flat_view(b.z, 0, 8), 1});
  b.copy(b.compute, flat_view(b.x, 0, 8), flat_view(b.y, 8, 8));
  b.copy(b.compute, flat_view(b.y, 0, 8), flat_view(b.x, 0, 8));
  const Plan plan = b.build();
  EXPECT_EQ(edges_of(plan, 3), (Edges{{0, 0}}));
  EXPECT_EQ(edges_of(plan, 4), (Edges{{1, 0}}));
}

// The transfer of block k+1 runs beside the computation on block k; it overwrites the slot that computation
// k-1 has read.
TEST(PlanBuilder, DoubleBufferingOverlapsAndReusesASlotOneIterationLater) {
  Builder b;
  const BufferId kv = b.temporary("kv", DType::f32, 32);
  const auto slot = [&](std::int64_t phase) { return flat_view(kv, 0, 16, {16, 2, phase}); };
  const StepId first = b.copy(b.compute, flat_view(b.x, 0, 16), flat_view(kv, 0, 16));
  b.begin_repeat(8);
  const StepId transfer = b.add(b.comm, Exchange{b.ring, {{1, slot(0)}}, {{1, slot(1)}}, {}});
  const StepId compute = b.add(b.compute, Accumulate{ReduceOp::sum, slot(0), flat_view(b.y, 0, 16)});
  b.end_repeat();
  const StepId last = b.copy(b.extra, flat_view(kv, 0, 16), flat_view(b.z, 0, 16));
  const Plan plan = b.build();
  EXPECT_EQ(edges_of(plan, transfer), (Edges{{first, 0}, {compute, 1}}));
  EXPECT_EQ(edges_of(plan, compute), (Edges{{transfer, 1}}));
  EXPECT_EQ(edges_of(plan, last), (Edges{{transfer, 0}}));
}

TEST(PlanBuilder, ThreeSlotsAreReusedTwoIterationsLater) {
  Builder b;
  const BufferId slots = b.temporary("slots", DType::f32, 48);
  const auto slot = [&](std::int64_t phase) { return flat_view(slots, 0, 16, {16, 3, phase}); };
  b.begin_repeat(10);
  const StepId fill = b.add(b.comm, Fill{slot(1), 1});  // slot i+1
  const StepId use = b.copy(b.compute, slot(0), flat_view(b.x, 0, 16));
  b.end_repeat();
  const Plan plan = b.build();
  EXPECT_EQ(edges_of(plan, fill), (Edges{{use, 2}}));
  EXPECT_EQ(edges_of(plan, use), (Edges{{fill, 1}}));
}

TEST(PlanBuilder, AStackOfLayersIsNotReused) {
  Builder b;
  const BufferId stack = b.temporary("stack", DType::f32, 8 * 11);
  b.begin_repeat(10);
  const StepId prefetch = b.add(b.comm, Fill{flat_view(stack, 8, 8, {8, 0, 0}), 1});  // layer i+1
  const StepId use = b.copy(b.compute, flat_view(stack, 0, 8, {8, 0, 0}), flat_view(b.x, 0, 8));
  b.end_repeat();
  const Plan plan = b.build();
  EXPECT_EQ(edges_of(plan, prefetch), Edges{});
  EXPECT_EQ(edges_of(plan, use), (Edges{{prefetch, 1}}));
}

TEST(PlanBuilder, AFixedBufferInARepeatIsHandedBackEachIteration) {
  Builder b;
  b.begin_repeat(4);
  const StepId fill = b.add(b.comm, Fill{flat_view(b.x, 0, 8), 1});
  const StepId use = b.copy(b.compute, flat_view(b.x, 0, 8), flat_view(b.y, 0, 8));
  b.end_repeat();
  const Plan plan = b.build();
  EXPECT_EQ(edges_of(plan, fill), (Edges{{use, 1}}));
  EXPECT_EQ(edges_of(plan, use), (Edges{{fill, 0}}));
}

TEST(PlanBuilder, ARepeatOfOneIterationHasNoEdgesBack) {
  Builder b;
  b.begin_repeat(1);
  b.add(b.comm, Fill{flat_view(b.x, 0, 8), 1});
  b.copy(b.compute, flat_view(b.x, 0, 8), flat_view(b.y, 0, 8));
  b.end_repeat();
  const Plan plan = b.build();
  EXPECT_EQ(edges_of(plan, 0), Edges{});
  EXPECT_EQ(edges_of(plan, 1), (Edges{{0, 0}}));
}

// ---- against the model ----

bool all_conflicts_ordered(const Plan& plan, const std::vector<test::Instance>& instances) {
  const test::Before before = test::happens_before(plan, instances);
  for (std::size_t b = 0; b < instances.size(); ++b) {
    for (std::size_t a = 0; a < b; ++a) {
      if (!before[b][a] && test::conflict(instances[a], instances[b])) return false;
    }
  }
  return true;
}

RC_GTEST_PROP(PlanBuilder, OrdersAllConflicts, ()) {
  const Plan plan = test::random_plan();
  RC_ASSERT(all_conflicts_ordered(plan, test::instances_of(plan)));
}

// Edges across the border of a Repeat stand for its first or last iteration, so that one may be needed by no
// conflict of it; all other edges are.
RC_GTEST_PROP(PlanBuilder, WritesNoEdgeInVain, ()) {
  Plan plan = test::random_plan();
  const auto instances = test::instances_of(plan);
  const auto steps = steps_of(plan);
  for (const StepRef& ref : steps) {
    auto& after = const_cast<Step*>(ref.step)->after;
    for (std::size_t i = 0; i < after.size(); ++i) {
      const StepRef& target = steps[static_cast<std::size_t>(after[i].step)];
      if (target.segment != ref.segment && (target.count > 1 || ref.count > 1)) continue;
      const Edge edge = after[i];
      after.erase(after.begin() + static_cast<std::ptrdiff_t>(i));
      RC_ASSERT(!all_conflicts_ordered(plan, instances));
      after.insert(after.begin() + static_cast<std::ptrdiff_t>(i), edge);
    }
  }
}

RC_GTEST_PROP(PlanBuilder, TemporariesShareBytesOnlyWhenOrdered, ()) {
  const Plan plan = test::random_plan();
  RC_ASSERT(test::trouble_in_arena(plan) == "");
  for (const Buffer& buffer : plan.buffers) {
    if (buffer.kind != BufferKind::temporary) continue;
    RC_ASSERT(buffer.offset_bytes >= 0);
    RC_ASSERT(buffer.offset_bytes + buffer.bytes() <= plan.arena_bytes);
  }
}

// ---- structure, errors, cost ----

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const InvalidInput& error) {
    return error.what();
  }
  return "no error";
}

TEST(PlanBuilder, StreamsAndGroupsAreMadeOnFirstUse) {
  PlanBuilder b(2, host_target());
  EXPECT_EQ(b.stream("compute"), 0);
  EXPECT_EQ(b.stream("comm"), 1);
  EXPECT_EQ(b.stream("compute"), 0);
  EXPECT_EQ(b.group("tp", {0, 2}), 0);
  EXPECT_EQ(b.group("tp", {2, 3}), 1);
  EXPECT_EQ(b.group("cp", {0, 2}), 2);
  EXPECT_EQ(b.group("tp", {0, 2}), 0);
}

TEST(PlanBuilder, RefusesWhatNoPlanCanMean) {
  const auto on = [](const std::function<void(Builder&)>& body) {
    Builder b;
    return error_of([&] { body(b); });
  };
  EXPECT_EQ(on([](Builder& b) { b.group("tp", {0, 1, 0}); }), "group tp[0,1,0] holds rank 0 twice");
  EXPECT_EQ(on([](Builder& b) {
              b.group("tp", {1, 2});
            }),
            "group tp[1,2] lacks rank 0; a rank's plan has only groups that the rank is a member of");
  EXPECT_EQ(on([](Builder& b) { b.begin_repeat(0); }),
            "a Repeat has 0 iterations; use at least 1, or leave the Repeat out");
  EXPECT_EQ(on([](Builder& b) { b.begin_repeat(2), b.begin_repeat(2); }),
            "begin_repeat was called inside a Repeat; Repeats do not nest: unroll one of them");
  EXPECT_EQ(on([](Builder& b) { b.end_repeat(); }),
            "end_repeat was called without begin_repeat; call begin_repeat first");
  EXPECT_EQ(on([](Builder& b) { b.begin_repeat(2), b.build(); }),
            "build was called inside a Repeat; call end_repeat first");
  EXPECT_EQ(on([](Builder& b) { b.input("w", DType::f32, -1); }), "buffer w has -1 elements; use 0 to 2^59");
  const std::string streams = on([](Builder& b) {
    b.add(b.comm, AllReduce{b.ring, ReduceOp::sum, flat_view(b.x, 0, 8), flat_view(b.x, 0, 8)});
    b.add(b.compute, AllReduce{b.ring, ReduceOp::sum, flat_view(b.x, 0, 8), flat_view(b.x, 0, 8)});
  });
  EXPECT_EQ(
      streams,
      "group ring has a collective on stream 0 after one on stream 1; issue all collectives of a group on "
      "one stream, or make a second group");
}

TEST(PlanBuilder, RefusesWhatTheTargetLacks) {
  Target small = host_target();
  small.name = "small";
  small.kernels = {"copy"};
  small.collectives = {"exchange"};
  small.dtypes = {DType::f32};
  PlanBuilder b(0, small);
  const StreamId s = b.stream("s");
  const GroupId g = b.group("g", {0});
  const BufferId x = b.inout("x", DType::f32, 8);
  EXPECT_EQ(error_of([&] { b.inout("h", DType::bf16, 8); }), "target small has no dtype bf16 (buffer h)");
  EXPECT_EQ(error_of([&] {
              b.add(s, Scale{flat_view(x, 0, 8), 2}, "halve");
            }),
            "step scale \"halve\" of rank 0: target small has no kernel scale; it has copy");
  EXPECT_EQ(error_of([&] {
              b.add(s, AllGather{g, flat_view(x, 0, 8), flat_view(x, 0, 8)});
            }),
            "step all_gather of rank 0: target small has no collective all_gather; it has exchange");
  small.alignment_bytes = 48;
  EXPECT_EQ(error_of([&] { PlanBuilder(0, small); }), "target small aligns to 48 bytes; use a power of two");
}

TEST(PlanBuilder, AnEmptyRepeatLeavesNothing) {
  Builder b;
  b.begin_repeat(3);
  b.end_repeat();
  EXPECT_TRUE(b.build().segments.empty());
}

// Not a benchmark: a guard against quadratic work. 20,000 steps on four streams take a fraction of a second.
TEST(PlanBuilder, ManyStepsOnSeveralStreamsStayCheap) {
  const auto begin = std::chrono::steady_clock::now();
  Builder b;
  const StreamId streams[] = {b.compute, b.comm, b.extra, b.stream("fourth")};
  BufferId last = b.x;
  for (std::size_t i = 0; i < 20000; ++i) {
    const BufferId next = b.temporary("t", DType::f32, 64);
    b.copy(streams[i % 4], flat_view(last, 0, 64), flat_view(next, 0, 64));
    last = next;
  }
  const Plan plan = b.build();
  EXPECT_EQ(plan.arena_bytes, 2 * 64 * 4);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

}  // namespace
}  // namespace cp

// One rank alone against algebra.
#include "sim/cost/timeline/rank_replay.h"

#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "shared/plan/builder.h"
#include "sim/base/parallel_for.h"
#include "sim/base/stop.h"
#include "tests/cost/rank_plans.h"
#include "tests/cost/timeline_cluster.h"

namespace cp::sim {
namespace {

using testing::HandPlan;
using ::testing::HasSubstr;
using testing::kExact;
using testing::parts_ns;
using testing::round_cluster;
using testing::with_gathers;

// A search that is stopped does not wait for the replays that it has begun.
TEST(RankReplay, LooksAtTheStop) {
  std::atomic<bool> flag = false;
  const StopScope scope(&flag);
  const auto run = [] {
    HandPlan hand;
    hand.copy("compute", 10000);
    return hand.run(with_gathers()).time_ns;
  };
  EXPECT_GT(run(), 0);
  flag = true;
  EXPECT_THROW(run(), Stopped);
  EXPECT_THROW(parallel_for(4, 2, [](std::size_t, std::size_t) { FAIL() << "nothing begins any more"; }),
               Stopped);
  flag = false;
  // In the threads of a loop, too, which began before the stop.
  EXPECT_THROW(parallel_for(2, 2,
                            [&](std::size_t, std::size_t) {
                              flag = true;
                              run();
                            }),
               Stopped);
}

// After so long a time that a double no longer shows the gathers on the clock, they end all the same.
TEST(RankReplay, WhatIsTooShortForTheClockEnds) {
  HandPlan hand;
  hand.copy("compute", 10000);
  // Of many sizes: of some, size / rate * rate is not the size again.
  for (int i = 1; i < 200; ++i) hand.gather("tp", {0, 1}, 4 * i);
  hand.copy("tp", 10000);
  for (int i = 1; i < 200; ++i) hand.gather("tp", {0, 1}, 4 * i);
  Cluster cluster = with_gathers();
  cluster.gpu.hbm_gbps = 1e-20;
  const StepClock clock = hand.run(cluster);
  EXPECT_GT(clock.time_ns, 1e24);
  EXPECT_LT(clock.time_ns, 1e26);
}

TEST(RankReplay, AKernelBesideACollectiveHidesIt) {
  HandPlan hand;
  hand.copy("compute", 10000);
  hand.gather("tp", {0, 1}, 4000);
  const StepClock clock = hand.run(with_gathers());
  EXPECT_NEAR(clock.time_ns, 80, kExact);
  EXPECT_NEAR(clock.other_kernel_ns, 20, kExact);
  EXPECT_NEAR(clock.hidden_ns, 20, kExact);
  ASSERT_EQ(clock.exposed.size(), 1U);
  EXPECT_EQ(clock.exposed[0].group, "tp");
  EXPECT_NEAR(clock.exposed[0].ns, 60, kExact);
  EXPECT_NEAR(clock.nvlink_bytes, 4000, kExact);
  EXPECT_EQ(clock.nic_bytes, 0);
  EXPECT_TRUE(clock.spans.empty());
}

// Both would fill the GPU, so together they take as long as one after the other; nothing is gained but the
// time in which one of them waits for a transfer.
TEST(RankReplay, AMergeAndAttentionShareTheGpu) {
  const auto run = [](bool waits, const char* stream) {
    HandPlan hand;
    if (waits) hand.gather("compute", {0, 1}, 4000);  // 80 ns, before attention
    hand.attention();                                 // 1,000 ns
    hand.copy(stream, 200000000);                     // 400 ns
    Cluster cluster = with_gathers();
    cluster.gpu.hbm_gbps = 1e6;
    return hand.run(cluster, {}, true);
  };
  EXPECT_NEAR(run(false, "compute").time_ns, 1400, kExact);
  const StepClock clock = run(false, "merge");
  EXPECT_NEAR(clock.time_ns, 1400, kExact);
  EXPECT_NEAR(clock.spans.front().end_ns, 800, kExact) << "the merge, at half of its speed";
  EXPECT_NEAR(clock.attention_ns + clock.other_kernel_ns, 1400, kExact);
  EXPECT_NEAR(run(true, "compute").time_ns, 1480, kExact);
  EXPECT_NEAR(run(true, "merge").time_ns, 1400, kExact) << "80 ns while attention waits";
  EXPECT_NEAR(run(false, "other").time_ns, 1000, kExact) << "what is no merge is not held to it";
}

TEST(RankReplay, OnOneStreamOneAfterTheOther) {
  HandPlan hand;
  hand.copy("s", 10000);
  hand.gather("s", {0, 1}, 4000);
  const StepClock clock = hand.run(with_gathers(), {}, true);
  EXPECT_NEAR(clock.time_ns, 20 + 80, kExact);
  EXPECT_NEAR(clock.exposed_ns(), 80, kExact);
  EXPECT_EQ(clock.hidden_ns, 0);
  ASSERT_EQ(clock.spans.size(), 2U);
  EXPECT_EQ(clock.spans[1].step, 1);
  EXPECT_NEAR(clock.spans[1].begin_ns, 20, kExact);
  EXPECT_NEAR(clock.spans[1].end_ns, 100, kExact);
}

// Each uses half of the port: alone 80 ns; three get a third.
TEST(RankReplay, CollectivesShareThePort) {
  const auto time = [](double gbps) {
    HandPlan hand;
    for (const char* group : {"a", "b", "c"}) hand.gather(group, {0, 1}, 4000);
    Cluster cluster = with_gathers();
    cluster.node.nvlink_gbps = gbps;
    return hand.run(cluster);
  };
  const StepClock clock = time(100);
  EXPECT_NEAR(clock.time_ns, 120, kExact);
  EXPECT_NEAR(time(150).time_ns, 80, kExact);
  EXPECT_NEAR(clock.exposed[0].ns, 120, kExact) << "the one that began first";
  EXPECT_EQ(clock.exposed[1].ns + clock.exposed[2].ns, 0);
}

// Inside: 4,000 bytes at 100 GB/s. Between nodes: at 10; the two do not meet.
TEST(RankReplay, ExchangesTakeTheirPorts) {
  const auto time = [](const std::vector<Rank>& ranks, Cluster cluster = round_cluster()) {
    HandPlan hand;
    hand.exchange("cp", ranks, {1}, {1}, 4000);
    return hand.run(cluster);
  };
  EXPECT_NEAR(time({0, 1}).time_ns, 40, kExact);
  EXPECT_NEAR(time({0, 2}).time_ns, 400, kExact);
  EXPECT_NEAR(time({0, 2}).nic_bytes, 4000, kExact);
  Cluster cluster = round_cluster();
  cluster.network.gpus_per_nic = 2;
  EXPECT_NEAR(time({0, 2}, cluster).time_ns, 800, kExact) << "GPU 1 does the same";
  cluster.network.latency_us = 1;
  EXPECT_NEAR(time({0, 2}, cluster).time_ns, 1800, kExact);
  cluster.transfer.inter_node = Curve({{4000, 2}});
  EXPECT_NEAR(time({0, 2}, cluster).time_ns, 2000, kExact) << "measured, with its latency";
  HandPlan both;
  both.exchange("cp", {0, 1}, {1}, {1}, 4000);
  both.exchange("dp", {0, 2}, {1}, {1}, 4000);
  EXPECT_NEAR(both.run(round_cluster()).time_ns, 400, kExact);
}

// A ring over both nodes: GPUs 1 and 3 send to another node, and all wait for them. This GPU's bytes stay
// inside.
TEST(RankReplay, AnExchangeTakesWhatItsSlowestMemberDoes) {
  HandPlan hand;
  hand.exchange("cp", {0, 1, 2, 3}, {1}, {3}, 4000);
  const StepClock clock = hand.run(round_cluster());
  EXPECT_NEAR(clock.time_ns, 400, kExact);
  EXPECT_NEAR(clock.nvlink_bytes, 4000, kExact);
  EXPECT_EQ(clock.nic_bytes, 0);
}

TEST(RankReplay, AnExchangeWithoutTransfersTakesNoTime) {
  HandPlan hand;
  hand.exchange("cp", {0, 1}, {}, {}, 4);
  EXPECT_EQ(hand.run(round_cluster()).time_ns, 0);
}

TEST(RankReplay, KernelsSlowDownBesideTransfersAndTransfersBesideKernels) {
  const auto time = [](double progress, double share) {
    HandPlan hand;
    hand.attention();
    hand.exchange("cp", {0, 2}, {1}, {1}, 4000);
    Cluster cluster = round_cluster();
    cluster.gpu.hbm_gbps = 1e6;  // the flops count
    cluster.transfer.beside_kernels = share;
    SoftwareProfile software;
    software.forward_progress = progress;
    return hand.run(cluster, software);
  };
  EXPECT_NEAR(time(1, 1).time_ns, 1000, kExact);
  EXPECT_NEAR(time(1, 1).attention_ns, 1000, kExact);
  EXPECT_NEAR(time(0.25, 1).time_ns, 1300, kExact);
  EXPECT_NEAR(time(0, 1).time_ns, 1400, kExact);
  EXPECT_NEAR(time(1, 0.5).hidden_ns, 800, kExact);
  EXPECT_NEAR(time(0.25, 0.5).time_ns, 1600, kExact);
}

TEST(RankReplay, KernelsKeepTheirSpeedBesideCopyEngines) {
  const auto time = [](bool copy_engine) {
    HandPlan hand;
    hand.attention();
    hand.exchange("cp", {0, 2}, {1}, {1}, 4000);
    Cluster cluster = round_cluster();
    cluster.gpu.hbm_gbps = 1e6;
    cluster.node.gpus = cluster.node.nvlink_domain = 4, cluster.node.nvlink_gbps = 10;
    cluster.transfer.beside_kernels = 0.5;
    SoftwareProfile software;
    software.forward_progress = 0.25;
    Plan plan = std::move(hand.builder).build({});
    for (Group& group : plan.groups) group.copy_engine = copy_engine;
    return replay_rank(plan, cluster, software);
  };
  EXPECT_NEAR(time(false).time_ns, 1600, kExact);
  EXPECT_NEAR(time(true).time_ns, 1000, kExact);
  EXPECT_NEAR(time(true).hidden_ns, 400, kExact);
}

// Of kernels that run at once attention counts before products, and these before the rest.
TEST(RankReplay, TimeGoesToTheFirstKind) {
  HandPlan hand;
  hand.attention();
  const BufferId a = hand.builder.input("a", DType::bf16, 1000 * 1000),
                 b = hand.builder.input("b", DType::bf16, 1000),
                 c = hand.builder.output("c", DType::bf16, 1000);
  hand.builder.add(
      hand.builder.stream("other"),
      MatMul{dense_view(a, 0, {1000, 1000}), dense_view(b, 0, {1000, 1}), dense_view(c, 0, {1000, 1})});
  hand.copy("third", 2000000);  // 4,000 ns
  const StepClock clock = hand.run(round_cluster());
  // Bound by memory: 251,000 f32 and two more; 1,002,000 bf16.
  EXPECT_NEAR(clock.attention_ns, 1004.008, kExact * 1e3);
  EXPECT_NEAR(clock.product_ns, 2004 - 1004.008, kExact * 1e3);
  EXPECT_NEAR(clock.other_kernel_ns, 4000 - 2004, kExact * 1e3);
  EXPECT_NEAR(clock.time_ns, 4000, kExact * 1e3);
}

TEST(RankReplay, ARankWithoutAGpuIsAnErrorThatSaysWhatWorks) {
  HandPlan hand;
  hand.gather("tp", {0, 4}, 4000);
  EXPECT_THAT([&] { hand.run(round_cluster()); },
              ::testing::ThrowsMessage<InvalidInput>(
                  HasSubstr("rank 4 of group tp has no GPU on round, which has 4; use --nodes 3")));
}

// Weights of the next layer are gathered while this one computes: 2^20 layers would take minutes one by one.
TEST(RankReplay, LongRepeatsAreSkipped) {
  const auto plan_of_layers = [](std::int64_t layers) {
    PlanBuilder builder(0, host_target());
    const BufferId shard = builder.input("shard", DType::f32, 1000),
                   slots = builder.temporary("slots", DType::f32, 4000),
                   x = builder.inout("x", DType::f32, 2000);
    const auto slot = [&](std::int64_t phase) { return flat_view(slots, 0, 2000, {2000, 2, phase}); };
    const StreamId fsdp = builder.stream("fsdp"), compute = builder.stream("compute");
    const GroupId group = builder.group("fsdp", {0, 1});
    builder.add(fsdp, AllGather{group, flat_view(shard, 0, 1000), flat_view(slots, 0, 2000)});
    builder.begin_repeat(layers);
    builder.add(fsdp, AllGather{group, flat_view(shard, 0, 1000), slot(1)});
    builder.add(compute, Accumulate{ReduceOp::sum, slot(0), flat_view(x, 0, 2000)});
    builder.end_repeat();
    return std::move(builder).build({});
  };
  const Cluster cluster = with_gathers();
  const StepClock clock = replay_rank(plan_of_layers(1 << 20), cluster, {});
  // The collective takes 80 ns, the kernel 24: each layer waits for its weights, and the last kernel runs
  // beside a gather that nobody needs.
  EXPECT_NEAR(clock.time_ns, 80.0 * ((1 << 20) + 1), kExact * clock.time_ns);
  EXPECT_NEAR(clock.other_kernel_ns, 24.0 * (1 << 20), kExact * clock.time_ns);
  EXPECT_NEAR(clock.hidden_ns, 24.0 * (1 << 20), kExact * clock.time_ns);
  EXPECT_NEAR(clock.nvlink_bytes, 4000.0 * ((1 << 20) + 1), 1);
  EXPECT_NEAR(clock.path[Rate::inside], clock.time_ns, kExact * clock.time_ns);
}

// ---- the host ----

TEST(RankReplay, AStepWaitsUntilItIsIssued) {
  const auto run = [](bool graphs) {
    HandPlan hand;
    hand.copy("s", 10000);
    hand.gather("s", {0, 1}, 4000);
    SoftwareProfile slow_host;
    slow_host.kernel_issue_us = 1, slow_host.collective_issue_us = 2, slow_host.captured_graphs = graphs;
    return hand.run(with_gathers(), slow_host);
  };
  const StepClock clock = run(false);
  EXPECT_NEAR(clock.time_ns, 3000 + 80, kExact);
  EXPECT_NEAR(clock.host_ns, 1000 + 1980, kExact);
  EXPECT_NEAR(clock.path[Rate::host], 3000, kExact);
  EXPECT_NEAR(parts_ns(clock), clock.time_ns, kExact);
  EXPECT_NEAR(run(true).time_ns, 100, kExact) << "captured";
}

// One copy in 20 us, then many that take 0.02 us each and are issued in 1 us each: the first hides the
// issuing of 20.
TEST(RankReplay, AHostThatIsAheadCostsNothing) {
  const auto run = [](std::int64_t first_bytes, int more) {
    HandPlan hand;
    hand.copy("s", first_bytes);
    for (int i = 0; i < more; ++i) hand.copy("s", 10000);
    SoftwareProfile host;
    host.kernel_issue_us = 1;
    return hand.run(with_gathers(), host);
  };
  EXPECT_NEAR(run(10000000, 10).time_ns, 1000 + 20000 + 10 * 20, 1e-6);
  EXPECT_NEAR(run(10000000, 10).host_ns, 1000, 1e-6) << "the first one is waited for";
  EXPECT_NEAR(run(10000000, 30).time_ns, 31000 + 20, 1e-6);
}

// A repeat whose iterations the host issues more slowly than the GPU runs them, and one where it comes ahead.
TEST(RankReplay, IterationsWaitForTheHostInStep) {
  const auto run = [](double issue_us) {
    PlanBuilder builder(0, host_target());
    const BufferId x = builder.inout("x", DType::f32, 2500), y = builder.inout("y", DType::f32, 2500);
    builder.begin_repeat(1 << 20);
    builder.add(builder.stream("s"), Copy{flat_view(x, 0, 2500), flat_view(y, 0, 2500)});
    builder.end_repeat();
    SoftwareProfile host;
    host.kernel_issue_us = issue_us;
    return replay_rank(std::move(builder).build({}), round_cluster(), host);
  };
  const StepClock slow = run(0.05), fast = run(0.01);
  EXPECT_NEAR(slow.time_ns, 50.0 * (1 << 20) + 20, kExact * slow.time_ns);
  EXPECT_NEAR(slow.path[Rate::host], 50.0 * (1 << 20), kExact * slow.time_ns);
  EXPECT_NEAR(fast.time_ns, 10 + 20.0 * (1 << 20), kExact * fast.time_ns);
  EXPECT_NEAR(fast.host_ns, 10, 1e-3);
}

// ---- the longest chain ----

// A gather and a kernel at once, and a kernel that waits for both: whichever takes longer is of the chain,
// and the last kernel.
TEST(RankReplay, ThePathIsOfWhatTakesLonger) {
  const auto path = [](std::int64_t copied, const RateFactors& factors = {}) {
    PlanBuilder builder(0, host_target());
    const BufferId in = builder.input("in", DType::f32, 1000), all = builder.output("all", DType::f32, 2000),
                   x = builder.inout("x", DType::f32, copied / 4),
                   y = builder.inout("y", DType::f32, copied / 4);
    const GroupId group = builder.group("tp", {0, 1});
    builder.add(builder.stream("tp"), AllGather{group, flat_view(in, 0, 1000), flat_view(all, 0, 2000)});
    builder.add(builder.stream("compute"), Copy{flat_view(x, 0, copied / 4), flat_view(y, 0, copied / 4)});
    // Reads what the gather wrote.
    builder.add(builder.stream("compute"),
                Accumulate{ReduceOp::sum, flat_view(all, 0, 1000), flat_view(y, 0, 1000)});
    const Plan plan = std::move(builder).build({});
    RankReplayOptions options;
    options.factors = factors;
    return replay_rank(plan, with_gathers(), {}, options).path;
  };
  const RateTimes waits = path(20000);  // the copy takes 40 ns, the gather 80
  EXPECT_NEAR(waits[Rate::inside], 80, kExact);
  EXPECT_NEAR(waits[Rate::memory], 12, kExact);
  const RateTimes computes = path(80000);  // 160 ns
  EXPECT_NEAR(computes[Rate::inside], 0, kExact);
  EXPECT_NEAR(computes[Rate::memory], 172, kExact);
  RateFactors slow_memory;
  slow_memory[Rate::memory] = 3;
  EXPECT_NEAR(path(20000, slow_memory)[Rate::memory], 3 * (40 + 12), kExact);
}

}  // namespace
}  // namespace cp::sim

// One rank alone against all ranks, against algebra, and with skipped iterations against all of them.
#include "sim/cost/timeline/rank_replay.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/context_parallel/attention_plan.h"
#include "shared/plan/builder.h"
#include "sim/base/parallel_for.h"
#include "sim/base/stop.h"
#include "sim/cost/cluster/read_cluster.h"
#include "sim/cost/timeline/timeline.h"
#include "tests/cost/show_cluster.h"
#include "tests/cost/timeline_cluster.h"
#include "tests/support/any_case.h"

namespace cp::sim {

void showValue(const SoftwareProfile& software, std::ostream& out) {
  out << "issues kernels in " << software.kernel_issue_us << ", collectives in "
      << software.collective_issue_us << ", transfers in " << software.transfer_issue_us << " us";
}
namespace {

using ::testing::HasSubstr;
using testing::kExact;
using testing::round_cluster;

double parts_ns(const StepClock& clock) {
  return clock.attention_ns + clock.product_ns + clock.other_kernel_ns + clock.exposed_ns() + clock.host_ns;
}

// ---- by hand ----

struct Hand {
  PlanBuilder builder{0, host_target()};
  // Reads and writes `bytes` each: 2 ns for every 1,000.
  void copy(const std::string& stream, std::int64_t bytes) {
    const BufferId in = builder.input("in", DType::f32, bytes / 4),
                   out = builder.output("out", DType::f32, bytes / 4);
    builder.add(builder.stream(stream), Copy{flat_view(in, 0, bytes / 4), flat_view(out, 0, bytes / 4)});
  }
  // Each member gives `bytes`.
  void gather(const std::string& stream, const std::vector<Rank>& ranks, std::int64_t bytes) {
    const auto n = static_cast<std::int64_t>(ranks.size());
    const BufferId in = builder.input("in", DType::f32, bytes / 4),
                   out = builder.output("out", DType::f32, n * bytes / 4);
    builder.add(builder.stream(stream), AllGather{builder.group(stream, ranks), flat_view(in, 0, bytes / 4),
                                                  flat_view(out, 0, n * bytes / 4)});
  }
  // Sends `bytes` to each of the peers and receives as many.
  void exchange(const std::string& stream, const std::vector<Rank>& ranks,
                const std::vector<std::int32_t>& to, const std::vector<std::int32_t>& from,
                std::int64_t bytes) {
    Exchange exchange;
    exchange.group = builder.group(stream, ranks);
    const auto view = [&](BufferId buffer) { return flat_view(buffer, 0, bytes / 4); };
    for (const std::int32_t peer : to)
      exchange.sends.push_back({peer, view(builder.input("in", DType::f32, bytes / 4))});
    for (const std::int32_t peer : from)
      exchange.recvs.push_back({peer, view(builder.output("out", DType::f32, bytes / 4))});
    builder.add(builder.stream(stream), exchange);
  }
  void attention() {  // 1,000 x 1,000 flops: 1,000 ns
    AttentionForward op;
    const auto view = [&](const char* name, std::int64_t rows) {
      return dense_view(builder.inout(name, DType::f32, rows * 250), 0, {1, rows, 1, 250});
    };
    op.q = view("q", 2), op.k = view("k", 500), op.v = view("v", 500), op.out = view("out", 2);
    op.lse = dense_view(builder.output("lse", DType::f32, 2), 0, {1, 1, 2});
    op.slices = {{0, 2, 0, 500, MaskSlice::Kind::full, 0, 0}};
    builder.add(builder.stream("compute"), op);
  }
  StepClock run(const Cluster& cluster, const SoftwareProfile& software = {}, bool spans = false) {
    const Plan plan = std::move(builder).build({});
    return replay_rank(plan, cluster, software, {.keep_spans = spans});
  }
};

// All-gathers of 4,000 bytes of each of two GPUs take 80 ns.
Cluster with_gathers(Cluster cluster = round_cluster()) {
  cluster.collectives.push_back({"all_gather", 2, 1, 0, Curve({{8000, 0.08}})});
  return cluster;
}

// A search that is stopped does not wait for the replays that it has begun.
TEST(RankReplay, LooksAtTheStop) {
  std::atomic<bool> flag = false;
  const StopScope scope(&flag);
  const auto run = [] {
    Hand hand;
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
  Hand hand;
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
  Hand hand;
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

TEST(RankReplay, OnOneStreamOneAfterTheOther) {
  Hand hand;
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
    Hand hand;
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
    Hand hand;
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
  Hand both;
  both.exchange("cp", {0, 1}, {1}, {1}, 4000);
  both.exchange("dp", {0, 2}, {1}, {1}, 4000);
  EXPECT_NEAR(both.run(round_cluster()).time_ns, 400, kExact);
}

// A ring over both nodes: GPUs 1 and 3 send to another node, and all wait for them. This GPU's bytes stay
// inside.
TEST(RankReplay, AnExchangeTakesWhatItsSlowestMemberDoes) {
  Hand hand;
  hand.exchange("cp", {0, 1, 2, 3}, {1}, {3}, 4000);
  const StepClock clock = hand.run(round_cluster());
  EXPECT_NEAR(clock.time_ns, 400, kExact);
  EXPECT_NEAR(clock.nvlink_bytes, 4000, kExact);
  EXPECT_EQ(clock.nic_bytes, 0);
}

TEST(RankReplay, AnExchangeWithoutTransfersTakesNoTime) {
  Hand hand;
  hand.exchange("cp", {0, 1}, {}, {}, 4);
  EXPECT_EQ(hand.run(round_cluster()).time_ns, 0);
}

TEST(RankReplay, KernelsSlowDownBesideTransfersAndTransfersBesideKernels) {
  const auto time = [](double progress, double share) {
    Hand hand;
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

// Of kernels that run at once attention counts before products, and these before the rest.
TEST(RankReplay, TimeGoesToTheFirstKind) {
  Hand hand;
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
  Hand hand;
  hand.gather("tp", {0, 4}, 4000);
  EXPECT_THAT([&] { hand.run(round_cluster()); },
              ::testing::ThrowsMessage<InvalidInput>(
                  HasSubstr("rank 4 of group tp has no GPU on round, which has 4; use --nodes 3")));
}

// ---- against all ranks ----

// Attention where all ranks do the same at the same time, or a little less of it than the one that does most:
// what rank_replay.h leaves out does not happen here, so that only rounding differs.
class Attention : public ::testing::TestWithParam<std::pair<const char*, const char*>> {};
INSTANTIATE_TEST_SUITE_P(Strategies, Attention,
                         ::testing::Values(std::pair("ring", "head_tail"), std::pair("ring", "striped"),
                                           std::pair("ulysses", "contiguous"),
                                           std::pair("all_gather", "head_tail"),
                                           std::pair("pass_q", "head_tail"),
                                           std::pair("ulysses_ring", "head_tail")));

AttentionRequest request_of(const std::pair<const char*, const char*>& strategy, int cp,
                            std::int64_t seq_len) {
  AttentionRequest request;
  request.problem.q_len = request.problem.kv_len = seq_len;
  request.problem.q_heads = 32, request.problem.kv_heads = 16;
  request.problem.head_dim = request.problem.v_head_dim = 128;
  request.problem.dtype = DType::bf16;
  request.problem.causal = true;
  request.ranks.resize(static_cast<std::size_t>(cp));
  std::iota(request.ranks.begin(), request.ranks.end(), 0);
  request.strategy = named_strategy({strategy.first, {}, {}}, request.problem, cp);
  request.strategy.balance = parse_balance(strategy.second);
  return request;
}

double slowest_ns(const std::vector<Plan>& plans, const Cluster& cluster, const SoftwareProfile& software) {
  double most = 0;
  for (const Plan& plan : plans) {
    const StepClock clock = replay_rank(plan, cluster, software);
    EXPECT_NEAR(parts_ns(clock), clock.time_ns, kExact * clock.time_ns);
    EXPECT_NEAR(clock.path.sum(), clock.time_ns, kExact * clock.time_ns);
    most = std::max(most, clock.time_ns);
  }
  return most;
}

void expect_equal(const std::vector<Plan>& plans, const Cluster& cluster, const SoftwareProfile& software,
                  const std::string& what) {
  const double all = replay(plans, cluster, software).time_ns;
  EXPECT_NEAR(slowest_ns(plans, cluster, software), all, kExact * all) << what;
}

TEST_P(Attention, TakesTheTimeOfAllRanks) {
  SoftwareProfile costly;
  costly.forward_progress = 0.7, costly.backward_progress = 0.8, costly.kernel_issue_us = 5;
  costly.collective_issue_us = 20, costly.transfer_issue_us = 3;
  // Whose kernels take the time of their pairs. By rates, half of the rows against all keys take less than
  // all rows against half of them, so that ranks of a ring wait for one another.
  for (const char* preset : {"a800", "h800"}) {
    for (const int cp : {2, 4, 8, 16}) {
      const Cluster cluster = find_cluster(preset, cp > 8 ? 2 : 1);
      Cluster slowed = cluster;
      slowed.transfer.beside_kernels = 0.8;
      for (const std::int64_t seq_len : {8192, 131072}) {
        for (const AttentionPass pass : {AttentionPass::forward, AttentionPass::backward}) {
          const auto plans = attention_plans(request_of(GetParam(), cp, seq_len), pass);
          const std::string what =
              str(preset, ", cp ", cp, ", ", seq_len, " tokens, pass ", static_cast<int>(pass));
          expect_equal(plans, cluster, {}, what);
          expect_equal(plans, slowed, costly, what + ", where overlap costs");
        }
      }
    }
  }
}

// ---- any plan that is the same on all ranks ----

struct AnyStep {
  int stream = 0, kind = 0, in = 0, out = 0, phase = 0;
  std::int64_t numel = 0;
};
struct AnySegment {
  std::int64_t count = 1;
  std::vector<AnyStep> steps;
};

constexpr std::int64_t kMost = 4000000;  // elements of a step's input

int uniform(int begin, int end) { return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(begin, end)); }

void showValue(const AnySegment& segment, std::ostream& out) {
  out << "\n  " << segment.count << " times:";
  for (const AnyStep& step : segment.steps) {
    out << " kind " << step.kind << " on " << step.stream << " "
        << "abcd"[step.in] << step.phase << "->"
        << "abcd"[step.out] << " " << step.numel << ";";
  }
}
std::vector<AnySegment> any_segments(int most_count) {
  return pick_case("segments", [=] {
    std::vector<AnySegment> segments(static_cast<std::size_t>(uniform(1, 4)));
    for (AnySegment& segment : segments) {
      segment.count = uniform(0, 3) == 0 ? 1 : uniform(1, most_count);
      segment.steps.resize(static_cast<std::size_t>(uniform(1, 7)));
      for (AnyStep& step : segment.steps) {
        step = {uniform(0, 3), uniform(0, 8), uniform(0, 4), 0, uniform(0, 2), 4 * uniform(1, kMost / 4)};
        step.out = (step.in + uniform(1, 4)) % 4;
      }
    }
    return segments;
  });
}

// On four ranks of two nodes. Buffers have two slots, used in turn.
Plan plan_of(Rank self, const std::vector<AnySegment>& segments) {
  PlanBuilder builder(self, host_target());
  std::vector<BufferId> buffers;
  for (const char* name : {"a", "b", "c", "d"})
    buffers.push_back(builder.inout(name, DType::bf16, 8 * kMost));
  const std::vector<Rank> all = {0, 1, 2, 3},
                          near = self < 2 ? std::vector<Rank>{0, 1} : std::vector<Rank>{2, 3},
                          far = {self % 2, self % 2 + 2};
  for (const AnySegment& segment : segments) {
    builder.begin_repeat(segment.count);
    for (const AnyStep& step : segment.steps) {
      const StreamId stream = builder.stream(str("stream", step.stream));
      const auto view = [&](int buffer, std::int64_t numel, std::int64_t phase) {
        return flat_view(buffers[static_cast<std::size_t>(buffer)], 0, numel, {4 * kMost, 2, phase});
      };
      const View in = view(step.in, step.numel, step.phase), out = view(step.out, step.numel, 0);
      const auto group = [&](const char* name, const std::vector<Rank>& ranks) {
        return builder.group(str(name, step.stream), ranks);
      };
      const auto swap = [&](const char* name, const std::vector<Rank>& ranks) {
        const std::int32_t peer = ranks[0] == self ? 1 : 0;
        return Exchange{group(name, ranks), {{peer, in}}, {{peer, out}}, {1, 2}};
      };
      switch (step.kind) {
        case 0:
          builder.add(stream, AllGather{group("all", all), in, view(step.out, 4 * step.numel, 0)});
          break;
        case 1:
          builder.add(stream, AllGather{group("near", near), in, view(step.out, 2 * step.numel, 0)});
          break;
        case 2:
          builder.add(stream, AllReduce{group("far", far), ReduceOp::sum, in, out});
          break;
        case 3:
          builder.add(stream, AllToAll{group("all", all), in, out});
          break;
        case 4:
          builder.add(stream, swap("near", near));
          break;
        case 5:
          builder.add(stream, swap("far", far));
          break;
        default:
          builder.add(stream, Copy{in, out});
      }
    }
    builder.end_repeat();
  }
  return std::move(builder).build({});
}

SoftwareProfile any_software() {
  return pick_case("software", [] {
    SoftwareProfile software;
    software.kernel_issue_us = *rc::gen::element(0.0, 3.0, 3000.0);
    software.collective_issue_us = *rc::gen::element(0.0, 5.0);
    software.transfer_issue_us = *rc::gen::element(0.0, 2.0, 400.0);
    return software;
  });
}

Cluster any_cluster() {
  return pick_case("cluster", [] {
    Cluster cluster = round_cluster();
    cluster.network.nic_gbps = *rc::gen::element(10.0, 70.0);
    cluster.transfer.beside_kernels = *rc::gen::element(1.0, 0.6);
    cluster.network.latency_us = *rc::gen::element(0.0, 10.0);
    cluster.transfer.intra_node_latency_us = *rc::gen::element(0.0, 0.05, 10.0);
    if (*rc::gen::arbitrary<bool>()) cluster.transfer.inter_node = Curve({{1000, 1}, {10000000, 8}});
    if (*rc::gen::arbitrary<bool>()) cluster.transfer.intra_node = Curve({{3000, 20}, {10000000, 80}});
    return cluster;
  });
}

RC_GTEST_PROP(RankReplayProperty, EqualsAllRanksWhereTheyAreAlike, ()) {
  const std::vector<AnySegment> segments = any_segments(7);
  const Cluster cluster = any_cluster();
  const SoftwareProfile software = any_software();
  std::vector<Plan> plans;
  for (Rank rank = 0; rank < 4; ++rank) plans.push_back(plan_of(rank, segments));
  TimelineOptions every_rank;
  every_rank.fidelity = Fidelity::simulated;
  const Timeline all = replay(plans, cluster, software, every_rank);
  const StepClock one = replay_rank(plans[1], cluster, software);
  RC_ASSERT(std::abs(one.time_ns - all.time_ns) <= kExact * all.time_ns);
  RC_ASSERT(std::abs(one.hidden_ns - all.ranks[1].hidden_comm_ns) <= kExact * all.time_ns);
  RC_ASSERT(std::abs(one.exposed_ns() - all.ranks[1].exposed_comm_ns) <= kExact * all.time_ns);
  RC_ASSERT(std::abs(parts_ns(one) - one.time_ns) <= kExact * one.time_ns);
  RC_ASSERT(std::abs(one.path.sum() - one.time_ns) <= kExact * one.time_ns);
}

// With spans nothing is skipped.
RC_GTEST_PROP(RankReplayProperty, SkippedIterationsAreLikeTheOthers, ()) {
  const std::vector<AnySegment> segments = any_segments(80);
  const Cluster cluster = any_cluster();
  const SoftwareProfile software = any_software();
  const Plan plan = plan_of(pick("rank", rc::gen::inRange(0, 4)), segments);
  const StepClock fast = replay_rank(plan, cluster, software),
                  slow = replay_rank(plan, cluster, software, {.keep_spans = true});
  const auto near = [&](double a, double b) { return std::abs(a - b) <= kExact * slow.time_ns; };
  RC_ASSERT(near(fast.time_ns, slow.time_ns));
  RC_ASSERT(near(fast.other_kernel_ns, slow.other_kernel_ns));
  RC_ASSERT(near(fast.hidden_ns, slow.hidden_ns));
  RC_ASSERT(near(fast.path.sum(), slow.time_ns));
  RC_ASSERT(fast.exposed.size() == slow.exposed.size());
  for (std::size_t g = 0; g < fast.exposed.size(); ++g)
    RC_ASSERT(near(fast.exposed[g].ns, slow.exposed[g].ns));
  RC_ASSERT(std::abs(fast.nvlink_bytes - slow.nvlink_bytes) <= kExact * slow.nvlink_bytes);
  RC_ASSERT(std::abs(fast.nic_bytes - slow.nic_bytes) <= kExact * slow.nic_bytes);
  std::size_t executions = 0;
  for (const StepRef& ref : steps_of(plan)) executions += static_cast<std::size_t>(ref.count);
  RC_ASSERT(slow.spans.size() == executions);
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
    Hand hand;
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
    Hand hand;
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

// Without anything that slows something else down the time is the longest of all chains: the one that was
// found is among them, and where all rates change alike it stays the longest.
TEST_P(Attention, NoChainTakesLongerThanTheWhole) {
  const Cluster cluster = find_cluster("h800", 2);
  for (const AttentionPass pass : {AttentionPass::forward, AttentionPass::backward}) {
    for (const std::int64_t seq_len : {8192, 131072}) {
      const Plan plan = attention_plan(request_of(GetParam(), 16, seq_len), pass, 0);
      const StepClock clock = replay_rank(plan, cluster, {});
      RankReplayOptions options;
      options.factors.of.fill(1.25);
      EXPECT_NEAR(replay_rank(plan, cluster, {}, options).time_ns, 1.25 * clock.time_ns,
                  kExact * clock.time_ns);
      double most_named = 0;
      for (std::size_t rate = 0; rate < kNumRates; ++rate) {
        for (const double factor : {0.5, 1.0001, 2.0}) {
          options.factors = {};
          options.factors.of[rate] = factor;
          const StepClock other = replay_rank(plan, cluster, {}, options);
          EXPECT_GE(other.time_ns, options.factors.of_chain(clock.path) * (1 - kExact))
              << name(static_cast<Rate>(rate)) << " " << factor << ", " << seq_len << " tokens";
          EXPECT_NEAR(other.path.sum(), other.time_ns, kExact * other.time_ns);
        }
        most_named = std::max(most_named, clock.path.of[rate]);
      }
      EXPECT_LT(most_named, clock.time_ns) << "several rates matter";
    }
  }
}

}  // namespace
}  // namespace cp::sim

// What a transfer takes below the first measured size.
#include "sim/cost/cluster/transfer_rate.h"

#include <numeric>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/plan/builder.h"
#include "sim/cost/cluster/read_cluster.h"
#include "sim/cost/network/pattern.h"
#include "sim/cost/timeline/pair_rate.h"
#include "sim/cost/timeline/port_loads.h"
#include "sim/cost/timeline/rank_replay.h"
#include "sim/cost/timeline/timeline.h"
#include "tests/cost/timeline_cluster.h"
#include "tests/support/any_case.h"

namespace cp::sim {
namespace {

double us(const Curve& rates, double latency_us, double bytes) {
  return bytes / transfer_gbps(rates, latency_us, bytes) / 1e3;
}

// 1,000 bytes at 0.1 GB/s take 10 us.
TEST(TransferRate, IsAStraightLineInTimeBelowTheFirstPoint) {
  const Curve rates({{1000, 0.1}, {100'000, 1}});
  EXPECT_NEAR(us(rates, 6, 1000), 10, 1e-12);
  EXPECT_NEAR(us(rates, 6, 500), 8, 1e-12);
  EXPECT_NEAR(us(rates, 6, 1), 6.004, 1e-12);
  EXPECT_DOUBLE_EQ(transfer_gbps(rates, 6, 100'000), 1);
}

TEST(TransferRate, ALatencyThatSaysNothingLeavesTheFirstPointsTime) {
  const Curve rates({{1000, 0.1}, {100'000, 1}});
  for (const double latency_us : {0.0, 10.0, 11.0}) EXPECT_NEAR(us(rates, latency_us, 8), 10, 1e-12);
}

RC_GTEST_PROP(TransferRate, TimeNeverFallsAndNeverStartsBelowTheLatency, ()) {
  std::vector<CurvePoint> points;
  double bytes = pick("first", rc::gen::inRange(1, 100'000)), time = pick("time", rc::gen::inRange(1, 1000));
  const double first_us = time / 1e3;
  for (int i = pick("points", rc::gen::inRange(1, 6)); i > 0; --i) {
    points.push_back({bytes, bytes / time});
    bytes *= pick("apart", rc::gen::inRange(2, 50));
    time += pick("longer", rc::gen::inRange(0, 1000));
  }
  const Curve rates(std::move(points));
  const double latency_us = pick("latency", rc::gen::inRange(0, 2000)) / 1e3;
  const double small = pick("small", rc::gen::inRange(1, 1'000'000)),
               large = small + pick("more", rc::gen::inRange(0, 1'000'000));
  RC_ASSERT(us(rates, latency_us, large) >= us(rates, latency_us, small) * (1 - 1e-12));
  const double floor_us = latency_us > 0 ? std::min(latency_us, first_us) : first_us;
  RC_ASSERT(us(rates, latency_us, small) >= floor_us * (1 - 1e-12));
}

// 64 KiB between nodes were measured: 32.4 us, of which 29.8 are no matter of bytes.
TEST(TransferRate, HoldsForMessagesExchangesAndLoads) {
  const Cluster cluster = find_cluster("a800", 2);
  const double latency_us = cluster.network.latency_us;
  const Topology topology(cluster);
  const Message message{0, cluster.node.gpus, 512};
  const double arrived_us = run_messages(topology, cluster.transfer, std::span(&message, 1))[0] / 1e3;
  EXPECT_GT(arrived_us, latency_us);
  EXPECT_LT(arrived_us, 1.01 * latency_us);

  const std::vector<Rank> ranks = {0, cluster.node.gpus};
  std::vector<Plan> plans;
  for (const std::int32_t self : {0, 1}) {
    PlanBuilder builder(ranks[static_cast<std::size_t>(self)], host_target());
    const BufferId in = builder.input("in", DType::bf16, 256), out = builder.output("out", DType::bf16, 256);
    builder.add(builder.stream("comm"), Exchange{builder.group("pair", ranks),
                                                 {{1 - self, flat_view(in, 0, 256)}},
                                                 {{1 - self, flat_view(out, 0, 256)}},
                                                 counts_digest({{0, 1, 256}, {1, 0, 256}})});
    plans.push_back(std::move(builder).build({}));
  }
  EXPECT_NEAR(replay(plans, cluster, {}).time_ns / 1e3, arrived_us, 1e-6 * arrived_us);

  PortLoads loads(plans[0], cluster, {});
  for (const StepRef& step : steps_of(plans[0])) {
    const auto* collective = std::get_if<Collective>(&step.step->work);
    if (collective == nullptr) continue;
    const PortFlow flow = loads.of(*collective).network;
    EXPECT_NEAR((flow.delay_ns + flow.bytes / flow.gbps) / 1e3, arrived_us, 1e-6 * arrived_us);
  }
}

// An all-to-all written as an exchange: seven transfers at once are no faster than what an all-to-all gets
// out of the links.
TEST(PairRate, ManyPeersShareWhatTheLibraryGetsOutOfTheLinks) {
  const Cluster cluster = find_cluster("dgx-h100");
  const std::int64_t numel = 16 << 20;
  std::vector<Rank> ranks(8);
  std::iota(ranks.begin(), ranks.end(), 0);
  std::vector<Count> entries;
  for (std::int32_t from = 0; from < 8; ++from) {
    for (std::int32_t to = 0; to < 8; ++to) {
      if (from != to) entries.push_back({from, to, numel});
    }
  }
  std::vector<Plan> plans;
  for (std::int32_t self = 0; self < 8; ++self) {
    PlanBuilder builder(self, host_target());
    const BufferId in = builder.input("in", DType::bf16, 8 * numel),
                   out = builder.output("out", DType::bf16, 8 * numel);
    Exchange exchange{builder.group("all", ranks), {}, {}, counts_digest(entries)};
    for (std::int32_t peer = 0; peer < 8; ++peer) {
      if (peer == self) continue;
      exchange.sends.push_back({peer, flat_view(in, peer * numel, numel)});
      exchange.recvs.push_back({peer, flat_view(out, peer * numel, numel)});
    }
    builder.add(builder.stream("comm"), exchange);
    plans.push_back(std::move(builder).build({}));
  }
  const double bytes = 7.0 * 2 * static_cast<double>(numel);
  const double ns = replay(plans, cluster, {}).time_ns;
  EXPECT_NEAR(ns, bytes / together_gbps(cluster), 1e-6 * ns);
  EXPECT_LT(together_gbps(cluster), cluster.node.nvlink_gbps / 1.2);
  PortLoads loads(plans[0], cluster, {});
  for (const StepRef& step : steps_of(plans[0])) {
    const auto* collective = std::get_if<Collective>(&step.step->work);
    if (collective == nullptr) continue;
    const PortFlow flow = loads.of(*collective).inside;
    EXPECT_NEAR(flow.delay_ns + flow.bytes / flow.gbps, ns, 1e-6 * ns);
  }
}

}  // namespace
}  // namespace cp::sim

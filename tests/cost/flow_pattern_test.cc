#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/error.h"
#include "sim/cost/network/flow_transfers.h"
#include "sim/cost/network/pattern.h"
#include "tests/cost/show_cluster.h"
#include "tests/support/any_case.h"

namespace cp::sim {

void showValue(const LinkFactors& factors, std::ostream& out) {
  out << "spread " << factors.spread << ", seed " << factors.seed << ", " << factors.gpus.size() << " GPUs, "
      << factors.links.size() << " links";
}

void showValue(const Pattern& pattern, std::ostream& out) {
  out << "pattern " << static_cast<int>(pattern.kind) << " of " << pattern.bytes << " bytes";
}
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr double kMiB = 1 << 20;
// Some thousand roundings of times that are sums of each other.
constexpr double kTimesClose = 1e-12;

// NVLink of 400 GB/s in nodes of 4, a NIC of 50 GB/s for each GPU on rails; 1.5 us and 4 us.
Cluster some_cluster(int nodes) {
  Cluster cluster;
  cluster.nodes = nodes;
  cluster.node = {.gpus = 4, .nvlink_domain = 4, .nvlink_gbps = 400};
  cluster.network = {.nic_gbps = 50, .gpus_per_nic = 1, .latency_us = 4};
  cluster.transfer.intra_node_latency_us = 1.5;
  return cluster;
}

std::vector<int> all_gpus(const Topology& topology) {
  std::vector<int> gpus(static_cast<std::size_t>(topology.num_gpus()));
  std::iota(gpus.begin(), gpus.end(), 0);
  return gpus;
}

PatternResult run(const Cluster& cluster, const Pattern& pattern, Fidelity fidelity,
                  const LinkFactors& factors = {}) {
  const Topology topology(cluster, factors);
  return run_pattern(topology, cluster.transfer, all_gpus(topology), pattern, fidelity);
}

double slowest(const PatternResult& result) {
  return *std::max_element(result.finish_ns.begin(), result.finish_ns.end());
}

double simulated(const Cluster& cluster, const Pattern& pattern, const LinkFactors& factors = {}) {
  return slowest(run(cluster, pattern, Fidelity::simulated, factors));
}

auto near(double expected) { return ::testing::DoubleNear(expected, kTimesClose * expected); }

TEST(FlowPatternTest, RingsInANodeTakeAStepForEachPart) {
  const double part = 16 * kMiB / 4 / 400 + 1500;
  for (const Fidelity fidelity : {Fidelity::simulated, Fidelity::folded}) {
    const auto finish = [&](PatternKind kind) {
      return run(some_cluster(1), {kind, 16 * kMiB}, fidelity).finish_ns;
    };
    EXPECT_THAT(finish(PatternKind::ring_all_gather), Each(near(3 * part)));
    EXPECT_THAT(finish(PatternKind::ring_reduce_scatter), Each(near(3 * part)));
    EXPECT_THAT(finish(PatternKind::ring_all_reduce), Each(near(6 * part)));
    EXPECT_THAT(finish(PatternKind::pairwise_all_to_all), Each(near(3 * part)));
  }
}

// A part takes longer between nodes than inside one, so the last GPU of a node sends its 7 parts without a
// pause, and the next GPU has the last of them when it arrives. The one after that gets the sixth, passed on;
// then the fifth, twice on. The last GPU has all its parts by then, and is done when its own seventh has
// left.
TEST(FlowPatternTest, ARingOverTwoNodesGoesAtTheRateOfItsNics) {
  const double part = 8 * kMiB / 8, out = part / 50, in = part / 400;
  for (const Fidelity fidelity : {Fidelity::simulated, Fidelity::folded}) {
    const std::vector<double> finish =
        run(some_cluster(2), {PatternKind::ring_all_gather, 8 * kMiB}, fidelity).finish_ns;
    for (int node = 0; node < 2; ++node) {
      const double* of = finish.data() + 4 * node;
      EXPECT_THAT(of[0], near(7 * out + 4000));
      EXPECT_THAT(of[1], near(6 * out + 4000 + (in + 1500)));
      EXPECT_THAT(of[2], near(5 * out + 4000 + 2 * (in + 1500)));
      EXPECT_THAT(of[3], near(7 * out));
    }
  }
}

TEST(FlowPatternTest, ChannelsUseTheOtherNics) {
  // 4 rings, each with its own NICs between nodes; inside, each NVLink has 3 of them, and is faster still.
  const double part = 32 * kMiB / 8 / 4;
  EXPECT_THAT(simulated(some_cluster(2), {PatternKind::ring_all_gather, 32 * kMiB, 4}),
              near(7 * part / 50 + 4000));
}

TEST(FlowPatternTest, AllToAllHasManyMessagesInFlight) {
  Cluster cluster = some_cluster(1);
  cluster.transfer.intra_node_latency_us = 0;
  for (const int in_flight : {1, 2, 3, 100}) {
    // However they are cut, all of a GPU's messages go over its NVLink.
    EXPECT_THAT(
        run(cluster, {PatternKind::pairwise_all_to_all, 64 * kMiB, 1, in_flight}, Fidelity::folded).finish_ns,
        Each(near(3 * 16 * kMiB / 400)));
  }
}

TEST(FlowPatternTest, AMeasuredCurveBoundsTheRateAndHoldsTheLatency) {
  Cluster cluster = some_cluster(2);
  cluster.transfer.inter_node = Curve({{kMiB, 25}, {1e9, 45}});
  // 2 ranks in different nodes: one message each.
  const Topology topology(cluster);
  const std::vector<int> gpus = {0, 4};
  const Pattern pattern{PatternKind::ring_all_gather, 2 * kMiB};
  EXPECT_THAT(run_pattern(topology, cluster.transfer, gpus, pattern, Fidelity::simulated).finish_ns,
              Each(near(kMiB / 25)));
  EXPECT_THAT(run_pattern(topology, cluster.transfer, gpus, pattern).finish_ns, Each(near(kMiB / 25)));
  EXPECT_NEAR(aggregate_ns(topology, cluster.transfer, gpus, pattern), kMiB / 25, kMiB * kTimesClose);
}

TEST(FlowPatternTest, MessagesShareWhatTheyMeetOn) {
  const Cluster cluster = some_cluster(2);
  const Topology topology(cluster);
  // Two over NIC 0; one beside them.
  const std::vector<Message> messages = {{0, 4, 1e6}, {0, 5, 3e6}, {1, 2, 4e6}};
  const std::vector<double> arrived = run_messages(topology, cluster.transfer, messages);
  EXPECT_THAT(arrived[0], near(2e6 / 50 + 4000));
  EXPECT_THAT(arrived[1], near(4e6 / 50 + 4000));
  EXPECT_THAT(arrived[2], near(4e6 / 400 + 1500));
}

TEST(FlowPatternTest, OneGpuHasNothingToDo) {
  const Cluster cluster = some_cluster(1);
  const Topology topology(cluster);
  for (const PatternKind kind : {PatternKind::ring_all_reduce, PatternKind::pairwise_all_to_all}) {
    const PatternResult result = run_pattern(topology, cluster.transfer, std::vector<int>{2}, {kind, 1});
    EXPECT_THAT(result.finish_ns, ::testing::ElementsAre(0.0));
    EXPECT_EQ(result.messages, 0);
    EXPECT_EQ(aggregate_ns(topology, cluster.transfer, std::vector<int>{2}, {kind, 1}), 0);
  }
}

TEST(FlowPatternTest, RefusesWhatMakesNoSense) {
  const Cluster cluster = some_cluster(1);
  const Topology topology(cluster);
  const auto with = [&](std::vector<int> gpus, const Pattern& pattern) {
    return [&cluster, &topology, gpus, pattern] { run_pattern(topology, cluster.transfer, gpus, pattern); };
  };
  EXPECT_THAT(with({0, 4}, {PatternKind::ring_all_gather, 1}),
              ThrowsMessage<InvalidInput>(AllOf(HasSubstr("gpu 4"), HasSubstr("the last one is 3"))));
  EXPECT_THAT(with({0, 1, 0}, {PatternKind::ring_all_gather, 1}),
              ThrowsMessage<InvalidInput>(HasSubstr("gpu 0")));
  EXPECT_THROW(with({0, 1}, {PatternKind::ring_all_gather, 0})(), InvalidInput);
  EXPECT_THROW(with({}, {PatternKind::ring_all_gather, 1})(), InvalidInput);
  EXPECT_THROW(with({0, 1}, {PatternKind::ring_all_gather, 1, 0})(), InvalidInput);
}

// ---- Laws, over random clusters ----

Cluster random_cluster() {
  return pick_case("cluster", [] {
    Cluster cluster = some_cluster(*rc::gen::inRange(1, 7));
    cluster.node.gpus = *rc::gen::inRange(1, 7);
    const bool nvlink = cluster.node.gpus > 1 && *rc::gen::arbitrary<bool>();
    cluster.node.nvlink_domain = nvlink ? cluster.node.gpus : 1;
    cluster.node.pcie_gbps = *rc::gen::inRange(20, 70);
    cluster.node.gpus_per_pcie_switch = *rc::gen::inRange(1, cluster.node.gpus + 1);
    cluster.node.pcie_root_gbps = *rc::gen::element(0.0, 25.0, 60.0);
    cluster.network.gpus_per_nic = *rc::gen::inRange(1, cluster.node.gpus + 1);
    cluster.network.rails = *rc::gen::arbitrary<bool>();
    cluster.network.nodes_per_leaf = *rc::gen::inRange(1, 4);
    cluster.network.oversubscription = *rc::gen::element(1.0, 1.0, 2.0);
    cluster.network.latency_us = *rc::gen::element(0.0, 4.0, 300.0);
    cluster.transfer.intra_node_latency_us = *rc::gen::element(0.0, 1.5);
    return cluster;
  });
}

Pattern random_pattern() {
  return pick_case("pattern", [] {
    const auto kind = *rc::gen::element(PatternKind::ring_all_gather, PatternKind::ring_reduce_scatter,
                                        PatternKind::ring_all_reduce, PatternKind::pairwise_all_to_all);
    return Pattern{kind, *rc::gen::inRange(1, 100) * 1e5, *rc::gen::inRange(1, 3), *rc::gen::inRange(1, 4)};
  });
}

LinkFactors random_factors(const Cluster& cluster) {
  return pick_case("factors", [=] {
    LinkFactors factors;
    if (*rc::gen::arbitrary<bool>()) return factors;
    factors.spread = 0.1;
    factors.seed = *rc::gen::arbitrary<std::uint32_t>();
    factors.gpus = {{*rc::gen::inRange(0, cluster.num_gpus()), 0.5}};
    return factors;
  });
}

RC_GTEST_PROP(FlowPatternPropertyTest, FoldedIsSimulated, ()) {
  const Cluster cluster = random_cluster();
  const Pattern pattern = random_pattern();
  const LinkFactors factors = random_factors(cluster);
  const PatternResult folded = run(cluster, pattern, Fidelity::folded, factors),
                      full = run(cluster, pattern, Fidelity::simulated, factors);
  RC_TAG(folded.folded);
  RC_ASSERT(!full.folded);
  RC_ASSERT(folded.messages == full.messages);
  for (std::size_t r = 0; r < full.finish_ns.size(); ++r) {
    RC_ASSERT(std::abs(folded.finish_ns[r] - full.finish_ns[r]) <= kTimesClose * full.finish_ns[r]);
  }
}

RC_GTEST_PROP(FlowPatternPropertyTest, DoublingEveryRateHalvesTheTime, ()) {
  Cluster cluster = random_cluster();
  const Pattern pattern = random_pattern();
  const LinkFactors factors = random_factors(cluster);
  cluster.network.latency_us = cluster.transfer.intra_node_latency_us = 0;
  const std::vector<double> slow = run(cluster, pattern, Fidelity::simulated, factors).finish_ns;
  for (double* rate : {&cluster.node.nvlink_gbps, &cluster.node.pcie_gbps, &cluster.node.pcie_root_gbps,
                       &cluster.network.nic_gbps}) {
    *rate *= 2;
  }
  std::vector<double> fast = run(cluster, pattern, Fidelity::simulated, factors).finish_ns;
  for (double& ns : fast) ns *= 2;
  RC_ASSERT(slow == fast);
}

// Of what folds. Where links are short, a faster one can let a message in earlier that slows a later one
// down.
RC_GTEST_PROP(FlowPatternPropertyTest, MonotoneInBandwidthLatencyAndSize, ()) {
  const Cluster cluster = random_cluster();
  const Pattern pattern = random_pattern();
  LinkFactors factors = random_factors(cluster);
  const PatternResult base = run(cluster, pattern, Fidelity::folded, factors);
  RC_PRE(base.folded);
  const auto no_earlier = [&](const PatternResult& other) {
    for (std::size_t r = 0; r < base.finish_ns.size(); ++r) {
      RC_ASSERT(other.finish_ns[r] >= base.finish_ns[r] * (1 - kTimesClose));
    }
  };
  Cluster far = cluster;
  far.network.latency_us += 3;
  far.transfer.intra_node_latency_us += 1;
  no_earlier(run(far, pattern, Fidelity::simulated, factors));
  Pattern larger = pattern;
  larger.bytes *= 1.5;
  no_earlier(run(cluster, larger, Fidelity::simulated, factors));
  const Topology topology(cluster, factors);
  if (topology.num_links() == 0) return;
  const LinkId slow = pick("slow", rc::gen::inRange(0, static_cast<LinkId>(topology.num_links())));
  factors.links = {{topology.name(slow), 0.7}};
  no_earlier(run(cluster, pattern, Fidelity::simulated, factors));
}

RC_GTEST_PROP(FlowPatternPropertyTest, LinksCarryWhatCrossesThem, ()) {
  const Cluster cluster = random_cluster();
  const Topology topology(cluster, random_factors(cluster));
  RC_PRE(topology.num_gpus() > 1);
  FlowTransfers transfers(topology, cluster.transfer);
  std::vector<double> crossed(topology.num_links(), 0);
  double at = 0;
  std::size_t events = 0, sent = 0;
  const int messages = pick("messages", rc::gen::inRange(1, 30));
  for (int i = 0; i < messages; ++i) {
    const int source = pick("source", rc::gen::inRange(0, topology.num_gpus()));
    const int target =
        (source + pick("target is behind the source by", rc::gen::inRange(1, topology.num_gpus()))) %
        topology.num_gpus();
    const double bytes = pick("bytes", rc::gen::inRange(1, 100)) * 1e4;
    transfers.send(at, source, target, bytes, 0);
    ++sent;
    const Route route = topology.route(source, target);
    for (const LinkId link : route.links()) crossed[static_cast<std::size_t>(link)] += bytes;
    if (pick("whether one event ends before", rc::gen::arbitrary<bool>()))
      at = transfers.next().at_ns, ++events;
  }
  while (!transfers.idle()) {
    const double next = transfers.next_ns();
    RC_ASSERT(next >= at);
    at = transfers.next().at_ns;
    RC_ASSERT(at == next);
    ++events;
  }
  RC_ASSERT(events == 2 * sent);
  for (std::size_t link = 0; link < crossed.size(); ++link) {
    RC_ASSERT(transfers.network().carried(static_cast<LinkId>(link)) == crossed[link]);
    RC_ASSERT(crossed[link] <= topology.capacities()[link] * at * (1 + kTimesClose));
  }
}

// ---- The closed form ----

TEST(FlowPatternTest, TheClosedFormIsExactWhereNoLinkIsShort) {
  for (const int nodes : {1, 2, 5}) {
    for (const double latency_us : {0.0, 4.0, 2000.0}) {
      for (const PatternKind kind :
           {PatternKind::ring_all_gather, PatternKind::ring_all_reduce, PatternKind::pairwise_all_to_all}) {
        for (const double spread : {0.0, 0.1}) {
          if (spread > 0 && kind == PatternKind::pairwise_all_to_all)
            continue;  // the slowest rank differs by step
          Cluster cluster = some_cluster(nodes);
          cluster.network.latency_us = latency_us;
          cluster.network.rails = false;  // all on one leaf
          const Topology topology(cluster, {.spread = spread, .seed = 3});
          const Pattern pattern{kind, 64 * kMiB};
          const double full = slowest(
              run_pattern(topology, cluster.transfer, all_gpus(topology), pattern, Fidelity::simulated));
          EXPECT_NEAR(aggregate_ns(topology, cluster.transfer, all_gpus(topology), pattern), full,
                      kTimesClose * full)
              << nodes << " nodes, " << latency_us << " us, pattern " << static_cast<int>(kind);
        }
      }
    }
  }
}

TEST(FlowPatternTest, TheClosedFormKnowsTheShareOfAShortLeaf) {
  Cluster cluster = some_cluster(6);
  cluster.network.nodes_per_leaf = 3;
  cluster.network.oversubscription = 4;
  const Pattern pattern{PatternKind::ring_all_gather, 64 * kMiB};
  const Topology topology(cluster);
  const double full = simulated(cluster, pattern);
  EXPECT_FALSE(run(cluster, pattern, Fidelity::folded).folded);
  EXPECT_NEAR(aggregate_ns(topology, cluster.transfer, all_gpus(topology), pattern), full, 1e-6 * full);
}

}  // namespace
}  // namespace cp::sim

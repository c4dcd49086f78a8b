// What goes over PCIe, and what the host computes: by hand.
#include "sim/cost/timeline/host_cost.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/plan/builder.h"
#include "sim/cost/cluster/read_cluster.h"
#include "sim/cost/timeline/kernel_cost.h"
#include "sim/cost/timeline/rank_replay.h"
#include "tests/cost/timeline_cluster.h"

namespace cp::sim {
namespace {

using testing::round_cluster;

TEST(HostRates, AreAGpusPartOfWhatTheNodeShares) {
  Node node{.gpus = 8, .pcie_gbps = 50, .gpus_per_pcie_switch = 2, .pcie_root_gbps = 60};
  EXPECT_EQ(host_rates(node).copy_gbps, 30);        // of the uplink, half
  EXPECT_EQ(host_rates(node).memory_gbps, 2 * 30);  // nobody said: as much as comes and goes
  node.pcie_root_gbps = 200;
  EXPECT_EQ(host_rates(node).copy_gbps, 50);  // its own link
  node.pcie_host_gbps = 80;
  EXPECT_EQ(host_rates(node).copy_gbps, 10);
  node.host_link_gbps = 225;
  EXPECT_EQ(host_rates(node).copy_gbps, 225);
  node.host_memory_gbps = 240;
  EXPECT_EQ(host_rates(node).memory_gbps, 30);
}

TEST(HostRates, AreInAllPresets) {
  for (const std::string& name : cluster_names()) {
    const Cluster cluster = find_cluster(name);
    EXPECT_GT(cluster.node.host_memory_gbps, 0) << name;
    ASSERT_NE(cluster.source_of("node.host_memory_gbps"), nullptr) << name;
  }
}

// 1,000 elements of f32: 4,000 bytes.
struct HandOnHost {
  PlanBuilder builder{0, shape_target()};
  BufferId gpu = builder.inout("x", DType::f32, 1000), far = builder.inout("host/x", DType::f32, 1000),
           other = builder.inout("host/y", DType::f32, 1000);
  View view(BufferId buffer) const { return flat_view(buffer, 0, 1000); }
  RowKernel optimizer(BufferId buffer) const {
    return {RowOperation::optimizer, {view(other)}, {}, {view(buffer)}};
  }
  Plan plan() { return std::move(builder).build({}); }
};

Cluster slow_host() {
  Cluster cluster = round_cluster();
  cluster.node.pcie_gbps = 10, cluster.node.pcie_root_gbps = 1000, cluster.node.host_memory_gbps = 40;
  return cluster;
}

TEST(KernelCost, CopiesTakePcieAndTheHostItsMemory) {
  HandOnHost hand;
  const Kernel copy{Copy{hand.view(hand.gpu), hand.view(hand.far)}}, adam{hand.optimizer(hand.far)};
  const Plan plan = hand.plan();
  const Cluster cluster = slow_host();
  const SoftwareProfile software;
  const KernelCost cost(cluster, software);
  EXPECT_DOUBLE_EQ(cost.ns(copy, plan), 4000 / 10.0);
  // Two GPUs share 40 GB/s; the gradient is read, the parameters are read and written.
  EXPECT_DOUBLE_EQ(cost.ns(adam, plan), 3 * 4000 / 20.0);
}

// A copy on a stream of its own, beside a kernel that takes less time or more: nothing of the GPU waits.
TEST(RankReplay, CopiesToTheHostHideBehindKernels) {
  for (const std::int64_t times : {5, 125}) {  // 8 ns and 400 of copies
    HandOnHost hand;
    hand.builder.add(hand.builder.stream("to_host"), Copy{hand.view(hand.gpu), hand.view(hand.far)});
    const BufferId large = hand.builder.inout("large", DType::f32, 1000 * times);
    // Written once: 4,000 bytes in 4 ns.
    hand.builder.add(hand.builder.stream("compute"), Fill{flat_view(large, 0, 1000 * times), 0});
    const StepClock clock = replay_rank(hand.plan(), slow_host(), SoftwareProfile{});
    const double kernel_ns = 4.0 * static_cast<double>(times), copy_ns = 400;
    EXPECT_DOUBLE_EQ(clock.time_ns, std::max(kernel_ns, copy_ns)) << times;
    EXPECT_DOUBLE_EQ(clock.other_kernel_ns, kernel_ns);
    EXPECT_DOUBLE_EQ(clock.offload_ns, std::max(0.0, copy_ns - kernel_ns));
    EXPECT_DOUBLE_EQ(clock.path[kernel_ns > copy_ns ? Rate::memory : Rate::offload],
                     std::max(kernel_ns, copy_ns));
  }
}

TEST(RankReplay, ASlowerHostMakesCopiesSlower) {
  HandOnHost hand;
  hand.builder.add(hand.builder.stream("to_host"), Copy{hand.view(hand.gpu), hand.view(hand.far)});
  RankReplayOptions options;
  options.factors[Rate::offload] = 2;
  EXPECT_DOUBLE_EQ(replay_rank(hand.plan(), slow_host(), SoftwareProfile{}, options).time_ns, 800);
}

}  // namespace
}  // namespace cp::sim

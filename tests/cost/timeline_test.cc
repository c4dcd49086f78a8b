// The timeline against algebra.
#include "sim/cost/timeline/timeline.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/text.h"
#include "shared/plan/builder.h"
#include "shared/plan/check.h"
#include "sim/cost/timeline/estimate.h"
#include "sim/proof/run/attention_run.h"
#include "tests/context_parallel/problem_generator.h"
#include "tests/cost/timeline_cluster.h"
#include "tests/support/any_case.h"

namespace cp::sim {
namespace {

using cp::testing::any_problem;
using cp::testing::any_strategy;
using testing::kExact;
using testing::round_cluster;

using AddSteps = std::function<void(PlanBuilder&, Rank)>;

std::vector<Plan> plans_of(int ranks, const AddSteps& add_steps) {
  std::vector<Plan> plans;
  for (Rank rank = 0; rank < ranks; ++rank) {
    PlanBuilder builder(rank, host_target());
    add_steps(builder, rank);
    plans.push_back(std::move(builder).build({}));
  }
  check(plans);
  return plans;
}

double time_ns(const std::vector<Plan>& plans, const Cluster& cluster = round_cluster(),
               const TimelineOptions& options = {}, const SoftwareProfile& software = {}) {
  return replay(plans, cluster, software, options).time_ns;
}

// Reads and writes `bytes` each: 2 ns for every 1,000.
void add_copy(PlanBuilder& builder, const std::string& stream, std::int64_t bytes,
              const std::string& name = "c") {
  const BufferId in = builder.input(name + "_in", DType::f32, bytes / 4);
  const BufferId out = builder.output(name + "_out", DType::f32, bytes / 4);
  builder.add(builder.stream(stream), Copy{flat_view(in, 0, bytes / 4), flat_view(out, 0, bytes / 4)});
}

// Each rank of `pairs` sends `bytes` to its partner and receives as many.
void add_swap(PlanBuilder& builder, Rank self, std::vector<Rank> pair, std::int64_t bytes,
              const std::string& stream = "comm") {
  if (std::find(pair.begin(), pair.end(), self) == pair.end()) return;
  const BufferId in = builder.input("swap_in", DType::f32, bytes / 4);
  const BufferId out = builder.output("swap_out", DType::f32, bytes / 4);
  const std::int32_t peer = self == pair[0] ? 1 : 0;
  const GroupId group = builder.group("pair", pair);
  builder.add(builder.stream(stream), Exchange{group,
                                               {{peer, flat_view(in, 0, bytes / 4)}},
                                               {{peer, flat_view(out, 0, bytes / 4)}},
                                               counts_digest({{0, 1, bytes / 4}, {1, 0, bytes / 4}})});
}

TEST(Timeline, AKernelTakesItsBytesAndItsLaunch) {
  const auto plans = plans_of(1, [](PlanBuilder& b, Rank) { add_copy(b, "s", 4000); });
  EXPECT_NEAR(time_ns(plans), 8, kExact);
  Cluster cluster = round_cluster();
  cluster.gpu.kernel_launch_us = 0.5;
  EXPECT_NEAR(time_ns(plans, cluster), 508, kExact);
  SoftwareProfile two_passes;
  two_passes.pack_passes = 2;
  EXPECT_NEAR(time_ns(plans, round_cluster(), {}, two_passes), 16, kExact);
}

TEST(Timeline, TransfersTakeTheirLinks) {
  const auto swap = [](Rank a, Rank b) {
    return plans_of(4, [=](PlanBuilder& builder, Rank self) { add_swap(builder, self, {a, b}, 4000); });
  };
  EXPECT_NEAR(time_ns(swap(0, 1)), 40, kExact) << "NVLink, both directions at once";
  EXPECT_NEAR(time_ns(swap(1, 2)), 400, kExact) << "NICs";
  Cluster cluster = round_cluster();
  cluster.network.latency_us = 1;
  EXPECT_NEAR(time_ns(swap(1, 2), cluster), 1400, kExact);
  cluster.transfer.inter_node = Curve({{4000, 5}});  // measured: half of the link, its latency included
  EXPECT_NEAR(time_ns(swap(1, 2), cluster), 800, kExact);
  SoftwareProfile slow_host;
  slow_host.transfer_issue_us = 1;
  EXPECT_NEAR(time_ns(swap(0, 1), round_cluster(), {}, slow_host), 2040, kExact);
}

TEST(Timeline, TransfersShareANic) {
  const auto plans = plans_of(4, [](PlanBuilder& builder, Rank self) {
    add_swap(builder, self, self % 2 == 0 ? std::vector<Rank>{0, 2} : std::vector<Rank>{1, 3}, 4000);
  });
  EXPECT_NEAR(time_ns(plans), 400, kExact);
  Cluster cluster = round_cluster();
  cluster.network.gpus_per_nic = 2;
  EXPECT_NEAR(time_ns(plans, cluster), 800, kExact);
  TimelineOptions every_rank;
  every_rank.fidelity = Fidelity::simulated;
  const Timeline timeline = replay(plans, cluster, {}, every_rank);
  EXPECT_EQ(replay(plans, cluster, {}).links.size(), 2U) << "one node stands for both";
  ASSERT_EQ(timeline.links.size(), 4U) << "two NICs, each way";
  for (const LinkUse& link : timeline.links) {
    EXPECT_NEAR(link.bytes, 8000, kExact) << link.name;
    EXPECT_NEAR(link.utilisation, 1, kExact) << link.name;
  }
}

TEST(Timeline, StreamsRunAtOnceAndOneStreamInOrder) {
  const auto plans = [](const std::string& stream) {
    return plans_of(2, [=](PlanBuilder& builder, Rank self) {
      add_copy(builder, "compute", 10000);
      add_swap(builder, self, {0, 1}, 4000, stream);
    });
  };
  EXPECT_NEAR(time_ns(plans("comm")), 40, kExact);
  EXPECT_NEAR(time_ns(plans("compute")), 60, kExact);
  const RankTimeline rank = replay(plans("comm"), round_cluster(), {}).ranks.front();
  EXPECT_NEAR(rank.compute_ns, 20, kExact);
  EXPECT_NEAR(rank.hidden_comm_ns, 20, kExact);
  EXPECT_NEAR(rank.exposed_comm_ns, 20, kExact);
  EXPECT_EQ(rank.bytes_received, 4000);
}

TEST(Timeline, WhoComesLateHoldsUpTheOthers) {
  const auto plans = plans_of(2, [](PlanBuilder& builder, Rank self) {
    if (self == 1) add_copy(builder, "s", 50000);  // 100 ns
    add_swap(builder, self, {0, 1}, 4000, "s");
    if (self == 0) add_copy(builder, "s", 5000, "d");
  });
  const Timeline timeline = replay(plans, round_cluster(), {});
  EXPECT_NEAR(timeline.time_ns, 150, kExact);
  EXPECT_NEAR(timeline.ranks[0].exposed_comm_ns, 140, kExact);
  ASSERT_EQ(timeline.critical_path.size(), 3U);
  EXPECT_EQ(timeline.critical_path[0].rank, 1);
  EXPECT_EQ(timeline.critical_path[0].bound, "copy");
  EXPECT_THAT(timeline.critical_path[1].bound, ::testing::HasSubstr("nvlink"));
  EXPECT_EQ(timeline.critical_path[2].rank, 0);
  EXPECT_NEAR(timeline.critical_path[2].end_ns, 150, kExact);
}

TEST(Timeline, CollectivesBeginWithTheirLastMember) {
  const auto plans = plans_of(2, [](PlanBuilder& builder, Rank self) {
    if (self == 1) add_copy(builder, "s", 50000);
    const BufferId in = builder.input("in", DType::f32, 1000), out = builder.output("out", DType::f32, 2000);
    builder.add(builder.stream("s"),
                AllGather{builder.group("g", {0, 1}), flat_view(in, 0, 1000), flat_view(out, 0, 2000)});
  });
  Cluster cluster = round_cluster();
  cluster.collectives.push_back({"all_gather", 2, 1, 0, Curve({{8000, 0.5}})});
  const Timeline timeline = replay(plans, cluster, {});
  EXPECT_NEAR(timeline.time_ns, 600, kExact);
  EXPECT_EQ(timeline.ranks[0].bytes_received, 4000);
  EXPECT_EQ(timeline.critical_path.back().bound, "all_gather");
}

// Two all-gathers at once over the same NVLinks, each taking half of what a link has when alone.
TEST(Timeline, CollectivesShareLinksWithEachOther) {
  const auto plans = plans_of(2, [](PlanBuilder& builder, Rank) {
    for (const std::string name : {"a", "b", "c"}) {
      const BufferId in = builder.input(name, DType::f32, 1000),
                     out = builder.output(name + "_all", DType::f32, 2000);
      builder.add(builder.stream(name),
                  AllGather{builder.group(name, {0, 1}), flat_view(in, 0, 1000), flat_view(out, 0, 2000)});
    }
  });
  Cluster cluster = round_cluster();
  cluster.collectives.push_back({"all_gather", 2, 1, 0, Curve({{8000, 0.08}})});  // 4,000 bytes at 50 GB/s
  EXPECT_NEAR(time_ns(plans, cluster), 120, kExact) << "three at 33.3 GB/s";
  cluster.node.nvlink_gbps = 150;
  EXPECT_NEAR(time_ns(plans, cluster), 80, kExact);
}

TEST(Timeline, RepeatsTakeEveryIteration) {
  const auto plans = plans_of(1, [](PlanBuilder& builder, Rank) {
    builder.begin_repeat(7);
    add_copy(builder, "s", 4000);
    builder.end_repeat();
  });
  EXPECT_NEAR(time_ns(plans), 56, kExact);
}

TEST(Timeline, StragglersAndSlowLinks) {
  const auto plans = plans_of(2, [](PlanBuilder& builder, Rank self) {
    add_copy(builder, "s", 50000);
    add_swap(builder, self, {0, 1}, 4000, "s");
  });
  EXPECT_NEAR(time_ns(plans), 140, kExact);
  TimelineOptions slow;
  slow.gpu_slowdown = {1, 1.5, 1, 1};
  EXPECT_NEAR(time_ns(plans, round_cluster(), slow), 190, kExact);
  TimelineOptions slow_link;
  slow_link.links.links = {{"gpu 0 nvlink out", 0.5}};
  EXPECT_NEAR(time_ns(plans, round_cluster(), slow_link), 180, kExact);
}

// Attention of 2 x 500 pairs of one head of 250: 1,000 x 1,000 flops, 1,000 ns; the transfer takes 400 ns.
std::vector<Plan> attention_and_swap() {
  return plans_of(3, [](PlanBuilder& builder, Rank self) {
    if (self == 0) return;
    const auto buffer = [&](const char* name, bool in, std::int64_t rows) {
      return in ? builder.input(name, DType::f32, rows * 250) : builder.output(name, DType::f32, rows * 250);
    };
    const BufferId q = buffer("q", true, 2), k = buffer("k", true, 500), v = buffer("v", true, 500),
                   out = buffer("out", false, 2), lse = builder.output("lse", DType::f32, 2);
    AttentionForward attention;
    attention.q = dense_view(q, 0, {1, 2, 1, 250}), attention.k = dense_view(k, 0, {1, 500, 1, 250});
    attention.v = dense_view(v, 0, {1, 500, 1, 250}), attention.out = dense_view(out, 0, {1, 2, 1, 250});
    attention.lse = dense_view(lse, 0, {1, 1, 2});
    attention.slices = {{0, 2, 0, 500, MaskSlice::Kind::full, 0, 0}};
    builder.add(builder.stream("compute"), attention);
    add_swap(builder, self, {1, 2}, 4000);
  });
}

TEST(Timeline, KernelsSlowDownWhileATransferIsUnderWay) {
  const auto time = [](double progress) {
    SoftwareProfile software;
    software.forward_progress = progress;
    Cluster cluster = round_cluster();
    cluster.gpu.hbm_gbps = 1e6;  // the flops count
    return time_ns(attention_and_swap(), cluster, {}, software);
  };
  EXPECT_NEAR(time(1), 1000, kExact);
  EXPECT_NEAR(time(0.25), 1300, kExact) << "a quarter of its speed for 400 ns";
  EXPECT_NEAR(time(0), 1400, kExact);
  SoftwareProfile software;
  software.forward_progress = 0.5;
  EXPECT_EQ(replay(attention_and_swap(), round_cluster(), software).critical_path.back().bound,
            "attention_forward beside transfers");
}

// Both would fill the GPU, so that together they take as long as one after the other.
TEST(Timeline, MergesAndAttentionShareTheGpu) {
  Cluster cluster = round_cluster();
  cluster.gpu.hbm_gbps = 1e6;
  const auto timeline = [&](const char* stream, double progress) {
    std::vector<Plan> plans = attention_and_swap();
    PlanBuilder builder(2, host_target());
    for (const char* name : {"compute", "comm"}) static_cast<void>(builder.stream(name));
    std::map<std::string, View> windows;
    for (const Buffer& buffer : plans[2].buffers) {
      const BufferId made = builder.inout(buffer.name, buffer.dtype, buffer.numel);
      windows[buffer.name] = flat_view(made, 0, buffer.numel);
    }
    builder.splice(plans[2], windows);
    add_copy(builder, stream, 200000000);  // 400 ns
    plans[2] = std::move(builder).build({});
    SoftwareProfile software;
    software.forward_progress = progress;
    return replay(plans, cluster, software);
  };
  EXPECT_NEAR(timeline("compute", 1).time_ns, 1400, kExact);
  EXPECT_NEAR(timeline("merge", 1).time_ns, 1400, kExact);
  EXPECT_EQ(timeline("merge", 1).critical_path.back().bound, "attention_forward beside merges");
  // Beside the transfer of 400 ns attention has a quarter of its half: the merge has not ended by then.
  EXPECT_NEAR(timeline("merge", 0.25).time_ns, 400 + 400 + (1000 - 400 * 0.125 - 400 * 0.5), kExact);
}

// The same with ranks that NVLink joins, as fast as the NICs are in the other tests.
TEST(Timeline, KernelsKeepTheirSpeedBesideCopyEngines) {
  Cluster cluster = round_cluster();
  cluster.gpu.hbm_gbps = 1e6;
  cluster.node.gpus = cluster.node.nvlink_domain = 4, cluster.node.nvlink_gbps = 10;
  cluster.transfer.beside_kernels = 0.5;
  SoftwareProfile software;
  software.forward_progress = 0.25;
  std::vector<Plan> plans = attention_and_swap();
  EXPECT_NEAR(time_ns(plans, cluster, {}, software), 1600, kExact);  // 800 ns at a quarter
  for (Plan& plan : plans) {
    for (Group& group : plan.groups) group.copy_engine = true;
  }
  const Timeline timeline = replay(plans, cluster, software);
  EXPECT_NEAR(timeline.time_ns, 1000, kExact);
  EXPECT_NEAR(timeline.ranks.back().hidden_comm_ns, 400, kExact);
  EXPECT_EQ(timeline.critical_path.back().bound, "attention_forward");
  try {
    replay(plans, round_cluster(), software);  // ranks 1 and 2 are on two nodes there
    ADD_FAILURE() << "no error";
  } catch (const InvalidInput& error) {
    EXPECT_THAT(error.what(),
                ::testing::HasSubstr("rank 2 is in another NVLink domain of 2 GPUs than rank 1"));
  }
}

// 4,000 bytes at 10 GB/s beside a kernel of 1,000 ns, and beside one of 200.
TEST(Timeline, TransfersSlowDownWhileAKernelRuns) {
  const auto time = [](double share, double kernel_speed) {
    Cluster cluster = round_cluster();
    cluster.gpu.hbm_gbps = 1e6;
    cluster.gpu.tflops_16 = kernel_speed;
    for (AttentionCurve& curve : cluster.attention) curve.tflops = Curve({{1, kernel_speed}});
    cluster.transfer.beside_kernels = share;
    return replay(attention_and_swap(), cluster, {}).ranks.back();
  };
  EXPECT_NEAR(time(1, 1).hidden_comm_ns, 400, kExact);
  EXPECT_NEAR(time(0.5, 1).hidden_comm_ns, 800, kExact);
  EXPECT_NEAR(time(0.5, 5).end_ns, 500, kExact) << "200 ns at half of the rate, the rest at all of it";
  EXPECT_NEAR(time(1, 5).end_ns, 400, kExact);
}

TEST(Timeline, ARankWithoutAGpuIsAnErrorThatSaysWhatWorks) {
  const auto plans = plans_of(5, [](PlanBuilder& builder, Rank) { add_copy(builder, "s", 4); });
  try {
    time_ns(plans);
    FAIL();
  } catch (const InvalidInput& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("rank 4 has no GPU on round, which has 4; use --nodes 3"));
  }
}

// ---- any attention ----

struct Scene {
  AttentionRequest request;
  AttentionPass pass;
};

void showValue(const Scene& scene, std::ostream& out) {
  out << to_string(scene.request.problem) << " documents " << join(scene.request.problem.cu_seqlens, "/")
      << " on " << scene.request.ranks.size() << " by " << to_string(scene.request.strategy) << ", "
      << (scene.pass == AttentionPass::forward ? "forward" : "backward");
}

Scene any_scene() {
  return pick_case("scene", [] {
    Scene scene;
    scene.request.problem = *any_problem();
    const int cp = *rc::gen::inRange(1, 9);
    scene.request.strategy = *any_strategy(scene.request.problem, cp);
    // NVLink joins two GPUs of this cluster, not all
    scene.request.strategy.transfers = Strategy::Transfers::sm;
    scene.request.ranks.resize(static_cast<std::size_t>(cp));
    std::iota(scene.request.ranks.begin(), scene.request.ranks.end(), 0);
    scene.pass = *rc::gen::element(AttentionPass::forward, AttentionPass::backward);
    return scene;
  });
}

Cluster faster(Cluster cluster, double factor) {
  for (double* rate : {&cluster.gpu.tflops_16, &cluster.gpu.tflops_f32, &cluster.gpu.hbm_gbps,
                       &cluster.node.nvlink_gbps, &cluster.node.pcie_gbps, &cluster.network.nic_gbps}) {
    *rate *= factor;
  }
  for (AttentionCurve& curve : cluster.attention) curve.tflops = Curve({{1, factor}});
  return cluster;
}

bool only_exchanges(const std::vector<Plan>& plans) {
  for (const Plan& plan : plans) {
    for (const StepRef& ref : steps_of(plan)) {
      const auto* collective = std::get_if<Collective>(&ref.step->work);
      if (collective != nullptr && !std::holds_alternative<Exchange>(*collective)) return false;
    }
  }
  return true;
}

// Other collectives have the library's latencies besides.
RC_GTEST_PROP(TimelineProperty, DoublingEveryRateHalvesTheTime, ()) {
  const Scene scene = any_scene();
  const auto plans = attention_plans(scene.request, scene.pass);
  const double once = time_ns(plans, round_cluster(4)), twice = time_ns(plans, faster(round_cluster(4), 2));
  RC_ASSERT(2 * twice >= once * (1 - 1e-9));
  RC_ASSERT(twice <= once * (1 + 1e-9));
  if (only_exchanges(plans)) RC_ASSERT(2 * twice <= once * (1 + 1e-9));
}

RC_GTEST_PROP(TimelineProperty, BytesAndMemoryAreThoseOfTheFabric, ()) {
  const Scene scene = any_scene();
  const AttentionTestData data(scene.request.problem, 1);
  AttentionRunOptions options;
  options.backward = true;
  const AttentionRun run = run_attention(data, scene.request, options);
  const bool backward = scene.pass == AttentionPass::backward;
  const AttentionPassResult& fabric = backward ? run.backward : run.forward;
  const AttentionEstimate estimate = estimate_attention(scene.request, scene.pass, round_cluster(4), {});
  RC_ASSERT(estimate.bytes_received == fabric.bytes_received_max);
  RC_ASSERT(estimate.peak_bytes == fabric.peak_bytes);
}

RC_GTEST_PROP(TimelineProperty, TheCriticalPathTakesTheWholeTime, ()) {
  const Scene scene = any_scene();
  const auto plans = attention_plans(scene.request, scene.pass);
  const Timeline timeline = replay(plans, round_cluster(4), {});
  double last = 0;
  for (const PathStep& step : timeline.critical_path) {
    RC_ASSERT(step.begin_ns <= last + 1e-6);  // nothing else was waited for
    RC_ASSERT(step.end_ns >= last - 1e-6);
    last = step.end_ns;
  }
  RC_ASSERT(last == timeline.time_ns);
  for (const RankTimeline& rank : timeline.ranks) {
    RC_ASSERT(rank.compute_ns + rank.exposed_comm_ns <= rank.end_ns * (1 + 1e-9));
  }
}

// What a rank receives; a reduction's partial sums in a ring.
double bytes_on_links(const Collective& collective, const Plan& plan) {
  const auto of = [&](const View& view) {
    return static_cast<double>(view.numel() *
                               size_bytes(plan.buffers[static_cast<std::size_t>(view.buffer)].dtype));
  };
  const auto n =
      static_cast<double>(plan.groups[static_cast<std::size_t>(group_of(collective))].ranks.size());
  if (const auto* scatter = std::get_if<ReduceScatter>(&collective)) return of(scatter->in) * (n - 1) / n;
  if (const auto* reduce = std::get_if<AllReduce>(&collective)) return 2 * of(reduce->in) * (n - 1) / n;
  double bytes = 0;
  for (const std::int64_t received : volume(collective, plan).received)
    bytes += static_cast<double>(received);
  return bytes;
}

// A ring sends along every link of the way what a rank receives, and enters nodes where they have NICs.
RC_GTEST_PROP(TimelineProperty, LinksCarryWhatRanksReceive, ()) {
  const Scene scene = any_scene();
  const auto plans = attention_plans(scene.request, scene.pass);
  const Cluster cluster = round_cluster(4);
  TimelineOptions every_rank;
  every_rank.fidelity = Fidelity::simulated;
  const Timeline timeline = replay(plans, cluster, {}, every_rank);
  double sent = 0, received = 0, expected = 0;
  for (const LinkUse& link : timeline.links) {
    RC_ASSERT(link.utilisation <= 1 + 1e-9);
    if (link.name.ends_with("out") || link.name.ends_with("tx")) sent += link.bytes;
    if (link.name.ends_with("in") || link.name.ends_with("rx")) received += link.bytes;
  }
  for (const Plan& plan : plans) {
    for (const StepRef& ref : steps_of(plan)) {
      if (const auto* collective = std::get_if<Collective>(&ref.step->work)) {
        expected += bytes_on_links(*collective, plan) * static_cast<double>(ref.count);
      }
    }
  }
  RC_ASSERT(std::abs(sent - expected) <= 1e-6 * expected);
  RC_ASSERT(std::abs(received - expected) <= 1e-6 * expected);
}

}  // namespace
}  // namespace cp::sim

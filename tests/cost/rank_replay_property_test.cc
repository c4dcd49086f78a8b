// Any plan that is the same on all ranks: one rank alone against all of them, and with skipped iterations
// against all of them.
#include <cmath>
#include <cstdint>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/index.h"
#include "shared/base/text.h"
#include "shared/context_parallel/strategy.h"
#include "shared/plan/builder.h"
#include "sim/cost/timeline/rank_replay.h"
#include "sim/cost/timeline/timeline.h"
#include "tests/cost/rank_plans.h"
#include "tests/cost/show_cluster.h"
#include "tests/cost/timeline_cluster.h"
#include "tests/support/any_case.h"

namespace cp::sim {

void showValue(const SoftwareProfile& software, std::ostream& out) {
  out << "issues kernels in " << software.kernel_issue_us << ", collectives in "
      << software.collective_issue_us << ", transfers in " << software.transfer_issue_us << " us";
}
namespace {

using testing::kExact;
using testing::parts_ns;
using testing::round_cluster;

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
        step = {uniform(0, 3), uniform(0, 8),
                uniform(0, 4), 0,
                uniform(0, 2), std::int64_t{4} * uniform(1, kMost / 4)};
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
        case 6:
          builder.add(builder.stream(std::string(kMergeStream)), Copy{in, out});
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
  std::vector<Plan> plans(4);
  for (Rank rank = 0; rank < 4; ++rank) plans[idx(rank)] = plan_of(rank, segments);
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

}  // namespace
}  // namespace cp::sim

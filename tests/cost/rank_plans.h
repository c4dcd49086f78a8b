// Plans of one rank by hand, for its replay alone.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "shared/plan/builder.h"
#include "sim/cost/cluster/cluster.h"
#include "sim/cost/cluster/software.h"
#include "sim/cost/timeline/rank_replay.h"
#include "tests/cost/timeline_cluster.h"

namespace cp::testing {

// What the times of the parts add up to.
inline double parts_ns(const sim::StepClock& clock) {
  return clock.attention_ns + clock.product_ns + clock.other_kernel_ns + clock.exposed_ns() + clock.host_ns;
}

struct HandPlan {
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
  sim::StepClock run(const sim::Cluster& cluster, const sim::SoftwareProfile& software = {},
                     bool spans = false) {
    const Plan plan = std::move(builder).build({});
    return sim::replay_rank(plan, cluster, software, {.keep_spans = spans});
  }
};

// All-gathers of 4,000 bytes of each of two GPUs take 80 ns.
inline sim::Cluster with_gathers(sim::Cluster cluster = round_cluster()) {
  cluster.collectives.push_back({"all_gather", 2, 1, 0, sim::Curve({{8000, 0.08}})});
  return cluster;
}

}  // namespace cp::testing

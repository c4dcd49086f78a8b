// Replays to be drawn in traces.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "shared/context_parallel/attention_plan.h"
#include "shared/plan/builder.h"
#include "shared/plan/check.h"
#include "sim/present/traces/trace_slices.h"
#include "tests/cost/timeline_cluster.h"

namespace cp::testing {

// Passes with all that trace_slices() only refers to.
class Replays {
 public:
  void add(std::string name, std::vector<Plan> plans) {
    sim::TimelineOptions options;
    options.keep_spans = true;
    check(plans);
    Pass pass{std::move(name), std::move(plans), {}};
    pass.timeline = sim::replay(pass.plans, cluster, {}, options);
    passes_.push_back(std::move(pass));
  }
  sim::TraceSlices slices() const& {  // refers to this
    std::vector<sim::TracedPass> passes;
    for (const Pass& pass : passes_) passes.push_back({pass.name, pass.plans, &pass.timeline});
    return sim::trace_slices(passes);
  }
  const std::vector<Plan>& plans(std::size_t pass = 0) const { return passes_[pass].plans; }
  const sim::Timeline& timeline(std::size_t pass = 0) const { return passes_[pass].timeline; }

  sim::Cluster cluster = round_cluster();

 private:
  struct Pass {
    std::string name;
    std::vector<Plan> plans;
    sim::Timeline timeline;
  };
  std::vector<Pass> passes_;
};

inline const std::string kOddLabel = "a \"label\"\\\n\x01 in \xc3\xa9tat";

// Four ranks; three times each collective among all of them and, beside those, a swap between neighbours,
// after copies that are longer on higher ranks. Odd ranks have their streams in another order.
inline std::vector<Plan> all_collectives() {
  std::vector<Plan> plans;
  for (Rank self = 0; self < 4; ++self) {
    PlanBuilder b(self, host_target());
    if (self % 2 == 1) b.stream("swaps");
    const StreamId compute = b.stream("compute"), comm = b.stream("comm"), swaps = b.stream("swaps");
    const GroupId world = b.group("world", {0, 1, 2, 3});
    const GroupId pair = b.group("pair", self < 2 ? std::vector<Rank>{0, 1} : std::vector<Rank>{2, 3});
    const std::int64_t copied = 1000 * (self + 1);
    const BufferId from = b.input("from", DType::f32, copied), to = b.output("to", DType::f32, copied);
    const BufferId aside = b.output("aside", DType::f32, copied / 2);
    const BufferId apart = b.output("apart", DType::f32, copied);
    const BufferId block = b.input("block", DType::bf16, 256), blocks = b.output("blocks", DType::bf16, 1024);
    const BufferId many = b.input("many", DType::f16, 1024), one = b.output("one", DType::f16, 256);
    const BufferId counts = b.inout("counts", DType::i32, 64);
    const BufferId turned = b.output("turned", DType::f16, 1024), told = b.output("told", DType::bf16, 256);
    const BufferId give = b.input("give", DType::f32, 4000), take = b.output("take", DType::f32, 4000);
    const std::int32_t peer = self % 2 == 0 ? 1 : 0;
    b.begin_repeat(3);
    b.add(compute, Copy{flat_view(from, 0, copied), flat_view(to, 0, copied)}, kOddLabel);
    b.add(comm, Copy{flat_view(from, 0, copied / 2), flat_view(aside, 0, copied / 2)});
    b.add(comm, AllGather{world, flat_view(block, 0, 256), flat_view(blocks, 0, 1024)}, "gather");
    b.add(comm, ReduceScatter{world, ReduceOp::sum, flat_view(many, 0, 1024), flat_view(one, 0, 256)});
    b.add(comm, AllReduce{world, ReduceOp::max, flat_view(counts, 0, 64), flat_view(counts, 0, 64)});
    b.add(comm, AllToAll{world, flat_view(many, 0, 1024), flat_view(turned, 0, 1024)});
    b.add(comm, Broadcast{world, 1, flat_view(block, 0, 256), flat_view(told, 0, 256)});
    b.add(swaps, Copy{flat_view(from, 0, copied), flat_view(apart, 0, copied)});
    b.add(swaps, Exchange{pair,
                          {{peer, flat_view(give, 0, 3000)}, {peer, flat_view(give, 3000, 1000)}},
                          {{peer, flat_view(take, 0, 3000)}, {peer, flat_view(take, 3000, 1000)}},
                          counts_digest({{0, 1, 4000}, {1, 0, 4000}})});
    b.end_repeat();
    plans.push_back(std::move(b).build({}));
  }
  return plans;
}

inline std::vector<Plan> ring(AttentionPass pass) {
  AttentionRequest request;
  request.problem.q_len = request.problem.kv_len = 512;
  request.problem.causal = true;
  request.ranks = {0, 1, 2, 3};
  return attention_plans(request, pass);
}

// Length of the union of [begin, end), which come in order of their begins.
struct Busy {
  double total = 0, until = -std::numeric_limits<double>::infinity();
  void add(double begin, double end) {
    total += std::max(0.0, end - std::max(begin, until));
    until = std::max(until, end);
  }
};

}  // namespace cp::testing

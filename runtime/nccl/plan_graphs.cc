#include "runtime/nccl/plan_graphs.h"

#include <algorithm>
#include <numeric>

#include "runtime/cuda/cuda_streams.h"
#include "runtime/nccl/nccl_order.h"
#include "shared/base/text.h"
#include "shared/plan/canonical.h"

namespace cp::runtime {

std::string refuse_graph(const Plan& plan) {
  // Read in NCCL 2.30: copy engines wait for other signals in a graph than in a launch, so that ranks of
  // which one captures and another one launches would wait for ever.
  if (std::ranges::any_of(plan.groups, [](const Group& group) { return group.copy_engine; }))
    return "copy engines serve one of its groups, and ranks may not capture alike";
  std::vector<std::int64_t> collectives(plan.groups.size());
  for (const StepRef& ref : steps_of(plan)) {
    if (const auto* collective = std::get_if<Collective>(&ref.step->work))
      collectives[static_cast<std::size_t>(group_of(*collective))] += ref.count;
  }
  for (std::size_t group = 0; group < collectives.size(); ++group) {
    if (collectives[group] <= std::int64_t{NcclOrder::kMostUnderWay}) continue;
    return str("it has ", collectives[group], " collectives of group ", canonical_name(plan.groups[group]),
               ", all of which a graph would put under way at once, and no more than ",
               NcclOrder::kMostUnderWay, " may be");
  }
  const std::int64_t all = std::accumulate(collectives.begin(), collectives.end(), std::int64_t{0});
  if (all <= StepEvents::kPairs) return "";
  return str("it has ", all, " collectives, and the watchdog follows no more than ", StepEvents::kPairs,
             " at once");
}

void PlanGraph::count() {
  for (const GraphCollective& one : collectives) {
    const auto found = std::ranges::find(counts, one.member, &decltype(counts)::value_type::first);
    if (found != counts.end()) {
      ++found->second;
    } else {
      counts.emplace_back(one.member, 1);
    }
  }
}

bool PlanGraphs::has(const PlanGraph& graph, const CudaMemory& memory) const {
  for (std::size_t i = 0; i < buffers_; ++i) {
    if (graph.addresses[i] != memory.data(static_cast<BufferId>(i))) return false;
  }
  return true;
}

std::shared_ptr<PlanGraph> PlanGraphs::of(const CudaMemory& memory) {
  ++uses_;
  for (const std::shared_ptr<PlanGraph>& graph : known_) {
    if (!has(*graph, memory)) continue;
    graph->used = uses_;
    return graph;
  }
  if (known_.size() == kMost) {
    const auto oldest = std::ranges::min_element(known_, {}, [](const auto& graph) { return graph->used; });
    graphs_.drop((*oldest)->id);
    known_.erase(oldest);
  }
  auto made = std::make_shared<PlanGraph>();
  for (std::size_t i = 0; i < buffers_; ++i) made->addresses.push_back(memory.data(static_cast<BufferId>(i)));
  made->used = uses_;
  known_.push_back(std::move(made));
  return nullptr;
}

void PlanGraphs::clear() {
  for (const std::shared_ptr<PlanGraph>& graph : known_) graphs_.drop(graph->id);
  known_.clear();
}

}  // namespace cp::runtime

#include "runtime/nccl/plan_graphs.h"

#include <algorithm>

namespace cp::runtime {

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

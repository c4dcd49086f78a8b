#include "shared/redistribute/cost_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "shared/base/error.h"

namespace cp {

double CostModel::bandwidth_gbps(const Mesh& mesh, int axis) const {
  const auto found = axis_gbps.find(mesh.axes()[static_cast<std::size_t>(axis)].name);
  if (found != axis_gbps.end()) return found->second;
  const std::vector<int> axes = {axis};
  for (const std::vector<Rank>& group : mesh.groups(axes)) {
    const auto [low, high] = std::minmax_element(group.begin(), group.end());
    if (*low / ranks_per_node != *high / ranks_per_node) return network_gbps;
  }
  return node_gbps;
}

void CostModel::validate() const {
  const auto require = [](bool holds, std::string_view name, double value, std::string_view rule) {
    if (!holds || !std::isfinite(value)) {
      throw InvalidInput(str("cost model: ", name, "=", value, " must be ", rule));
    }
  };
  for (const auto& [name, value] :
       std::array<std::pair<const char*, double>, 3>{{{"step_latency_us", step_latency_us},
                                                      {"peer_latency_us", peer_latency_us},
                                                      {"local_latency_us", local_latency_us}}}) {
    require(value >= 0, name, value, "0 or more microseconds");
  }
  for (const auto& [name, value] : std::array<std::pair<const char*, double>, 3>{
           {{"memory_gbps", memory_gbps}, {"node_gbps", node_gbps}, {"network_gbps", network_gbps}}}) {
    require(value > 0, name, value, "more than 0 GB/s");
  }
  for (const auto& [name, value] : std::array<std::pair<const char*, double>, 5>{
           {{"all_gather_efficiency", all_gather_efficiency},
            {"reduce_scatter_efficiency", reduce_scatter_efficiency},
            {"all_reduce_efficiency", all_reduce_efficiency},
            {"all_to_all_efficiency", all_to_all_efficiency},
            {"exchange_efficiency", exchange_efficiency}}}) {
    require(value > 0 && value <= 1, name, value, "in (0, 1]");
  }
  for (const auto& [axis, value] : axis_gbps)
    require(value > 0, "bandwidth of axis " + axis, value, "more than 0 GB/s");
  require(ranks_per_node >= 1, "ranks_per_node", ranks_per_node, "1 or more");
}

Hasher& hash(Hasher& hasher, const CostModel& model) {
  // A field that is added does not compile here until it counts.
  const auto& [step_latency_us, peer_latency_us, local_latency_us, memory_gbps, all_gather, reduce_scatter,
               all_reduce, all_to_all, exchange, node_gbps, network_gbps, ranks_per_node, axis_gbps] = model;
  for (const double value : {step_latency_us, peer_latency_us, local_latency_us, memory_gbps, all_gather,
                             reduce_scatter, all_reduce, all_to_all, exchange, node_gbps, network_gbps}) {
    hasher.add(value);
  }
  hasher.add(ranks_per_node).add(axis_gbps.size());
  for (const auto& [axis, value] : axis_gbps) hasher.add(std::string_view(axis)).add(value);
  return hasher;
}

}  // namespace cp

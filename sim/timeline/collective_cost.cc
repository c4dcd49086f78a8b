#include "sim/timeline/collective_cost.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <string_view>
#include <type_traits>

#include "shared/base/error.h"

namespace cp::sim {
namespace {

constexpr double kNsPerUs = 1e3;

std::string_view name_of(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::all_gather:
      return "all_gather";
    case CollectiveKind::reduce_scatter:
      return "reduce_scatter";
    case CollectiveKind::all_reduce:
      return "all_reduce";
    case CollectiveKind::all_to_all:
      return "all_to_all";
    case CollectiveKind::broadcast:
      return "broadcast";
  }
  return "";
}

// How a group lies on the nodes.
struct Spread {
  int gpus = 0, nodes = 0;
  int fewest_on_a_node = 0;
};

Spread spread_of(std::span<const Rank> gpus, const Cluster& cluster) {
  std::map<int, int> on_node;
  for (const Rank gpu : gpus) ++on_node[cluster.node_of(gpu)];
  Spread spread{static_cast<int>(gpus.size()), static_cast<int>(on_node.size()),
                static_cast<int>(gpus.size())};
  for (const auto& [node, count] : on_node)
    spread.fewest_on_a_node = std::min(spread.fewest_on_a_node, count);
  return spread;
}

const CollectiveCurve* measured(CollectiveKind kind, const Spread& spread, const Cluster& cluster) {
  for (const CollectiveCurve& curve : cluster.collectives) {
    if (curve.operation == name_of(kind) && curve.gpus == spread.gpus && curve.nodes == spread.nodes &&
        curve.channels_per_net_peer == 0) {
      return &curve;
    }
  }
  return nullptr;
}

// A ring's rate, of one GPU: what it can take from inside of a node, and its share of what crosses nodes. A group that
// has several GPUs on each node runs a ring through every one of them, so that all their NICs are at work.
double ring_gbps(const Spread& spread, const Cluster& cluster) {
  const double inside = cluster.node.nvlink_gbps > 0 ? cluster.node.nvlink_gbps : cluster.node.pcie_gbps;
  const bool one_domain = spread.nodes == 1 || cluster.node.nvlink_domain >= cluster.num_gpus();
  if (one_domain) return inside;
  const double nics =
      std::max(1.0, static_cast<double>(spread.fewest_on_a_node) / cluster.network.gpus_per_nic);
  const double across = nics * cluster.network.nic_gbps;
  return spread.fewest_on_a_node == 1 ? across : std::min(inside, across);
}

double ring_ns(CollectiveKind kind, double bytes, const Spread& spread, const Cluster& cluster) {
  constexpr double kEfficiency = 0.8;  // of the links' rate in long transfers, where nothing was measured
  const double n = spread.gpus, blocks = (n - 1) / n;
  const bool across = spread.nodes > 1;
  const double hop_us = across ? cluster.network.latency_us : cluster.transfer.intra_node_latency_us;
  const double rate = kEfficiency * ring_gbps(spread, cluster);
  switch (kind) {
    case CollectiveKind::all_gather:
    case CollectiveKind::reduce_scatter:
      return (n - 1) * hop_us * kNsPerUs + bytes * blocks / rate;
    case CollectiveKind::all_reduce: {
      const double passes = !across && cluster.node.nvls ? 1 + 1 / n : 2;  // the switch adds up
      return passes * ((n - 1) * hop_us * kNsPerUs + bytes * blocks / rate);
    }
    case CollectiveKind::broadcast:
      return (n - 1) * hop_us * kNsPerUs + bytes / rate;
    case CollectiveKind::all_to_all: {
      // Bytes of one GPU to others inside and across, each along its own links.
      const double inside = static_cast<double>(spread.fewest_on_a_node) - 1, outside = n - 1 - inside;
      const double link = cluster.node.nvlink_gbps > 0 ? cluster.node.nvlink_gbps : cluster.node.pcie_gbps;
      const double nic = cluster.network.nic_gbps / cluster.network.gpus_per_nic;
      const double across_ns = across ? bytes / n * outside / (kEfficiency * nic) : 0;
      return hop_us * kNsPerUs + std::max(bytes / n * inside / (kEfficiency * link), across_ns);
    }
  }
  return 0;
}

}  // namespace

double along_us(const Curve& time_us, double bytes) {
  const std::vector<CurvePoint>& points = time_us.points();
  if (bytes <= points.front().x) return points.front().y;
  if (points.size() == 1) return points.front().y * bytes / points.front().x;
  const auto right = std::find_if(points.begin() + 1, points.end() - 1,
                                  [&](const CurvePoint& point) { return point.x >= bytes; });
  const auto left = right - 1;
  return left->y + (right->y - left->y) * (bytes - left->x) / (right->x - left->x);
}

double collective_ns(CollectiveKind kind, double bytes, std::span<const Rank> gpus, const Cluster& cluster) {
  if (gpus.size() < 2 || bytes == 0) return 0;
  const Spread spread = spread_of(gpus, cluster);
  if (const CollectiveCurve* curve = measured(kind, spread, cluster))
    return along_us(curve->time_us, bytes) * kNsPerUs;
  return ring_ns(kind, bytes, spread, cluster);
}

double collective_ns(const Collective& collective, const Plan& plan, const Cluster& cluster) {
  const auto bytes = [&](const View& view) {
    return static_cast<double>(view.numel() *
                               size_bytes(plan.buffers[static_cast<std::size_t>(view.buffer)].dtype));
  };
  const std::vector<Rank>& ranks = plan.groups[static_cast<std::size_t>(group_of(collective))].ranks;
  return std::visit(
      [&](const auto& op) -> double {
        using T = std::remove_cvref_t<decltype(op)>;
        if constexpr (std::is_same_v<T, AllGather>) {
          return collective_ns(CollectiveKind::all_gather, bytes(op.out), ranks, cluster);
        } else if constexpr (std::is_same_v<T, ReduceScatter>) {
          return collective_ns(CollectiveKind::reduce_scatter, bytes(op.in), ranks, cluster);
        } else if constexpr (std::is_same_v<T, AllReduce>) {
          return collective_ns(CollectiveKind::all_reduce, bytes(op.in), ranks, cluster);
        } else if constexpr (std::is_same_v<T, AllToAll>) {
          return collective_ns(CollectiveKind::all_to_all, bytes(op.in), ranks, cluster);
        } else if constexpr (std::is_same_v<T, Broadcast>) {
          return collective_ns(CollectiveKind::broadcast, bytes(op.out), ranks, cluster);
        } else {
          CP_INVARIANT(false, "the transfers of an exchange are flows");
          return 0;
        }
      },
      collective);
}

}  // namespace cp::sim

#include "sim/cost/timeline/collective_cost.h"

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <type_traits>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/base/units.h"
#include "shared/transformer/group_axis.h"
#include "sim/cost/cluster/transfer_rate.h"

namespace cp::sim {
namespace {

// nccl-tests' send/recv is what plans call an exchange.
const CollectiveCurve* measured(CollectiveKind kind, const Spread& spread, const Cluster& cluster,
                                const CollectiveSettings& settings) {
  const std::string_view operation = kind == CollectiveKind::send_recv ? "exchange" : name(kind);
  for (const CollectiveCurve& curve : cluster.collectives) {
    if (curve.operation == operation && curve.gpus == spread.gpus && curve.nodes == spread.nodes &&
        (curve.channels_per_net_peer == 0 || curve.channels_per_net_peer == settings.channels_per_net_peer)) {
      return &curve;
    }
  }
  return nullptr;
}

}  // namespace

CollectiveSettings settings_of(CollectiveSettings settings, const SoftwareProfile& software) {
  if (settings.all_reduce.empty()) settings.all_reduce = software.all_reduce;
  return settings;
}

double along_us(const Curve& time_us, double bytes) {
  const std::vector<CurvePoint>& points = time_us.points();
  if (bytes <= points.front().x) return points.front().y;
  if (points.size() == 1) return points.front().y * bytes / points.front().x;
  const auto right = std::find_if(points.begin() + 1, points.end() - 1,
                                  [&](const CurvePoint& point) { return point.x >= bytes; });
  const auto left = right - 1;
  return left->y + (right->y - left->y) * (bytes - left->x) / (right->x - left->x);
}

double collective_ns(CollectiveKind kind, double bytes, std::span<const Rank> gpus, const Cluster& cluster,
                     const CollectiveSettings& settings) {
  return collective_ns(kind, bytes, spread_of(gpus, cluster), cluster, settings);
}

double collective_ns(CollectiveKind kind, double bytes, const Spread& spread, const Cluster& cluster,
                     const CollectiveSettings& settings) {
  if (spread.gpus < 2 || bytes == 0) return 0;
  if (const CollectiveCurve* curve = measured(kind, spread, cluster, settings))
    return along_us(curve->time_us, bytes) * kNsPerUs;
  return fastest(collective_choices(kind, spread, cluster, settings), bytes).us(bytes) * kNsPerUs;
}

double region_ns(CollectiveKind kind, double bytes, const Spread& spread, const Cluster& cluster,
                 const CollectiveSettings& settings) {
  const bool one_domain = spread.nvlink && cluster.node.nvlink_gbps > 0 && spread.islands <= 1 &&
                          (spread.nodes <= 1 || spread.islands == 1);
  const AllReduceRate* rate =
      one_domain ? find_all_reduce(cluster.rates.all_reduce, settings.all_reduce, spread.gpus) : nullptr;
  if (rate == nullptr || spread.gpus < 2 || bytes == 0)
    return collective_ns(kind, bytes, spread, cluster, settings);
  const double ns = all_reduce_us(*rate, bytes) * kNsPerUs;
  if (kind == CollectiveKind::all_reduce) return ns;
  if (kind == CollectiveKind::reduce_scatter || kind == CollectiveKind::all_gather) return ns / 2;
  return collective_ns(kind, bytes, spread, cluster, settings);
}

namespace {

constexpr double kSecondHand = 0.30;  // along another system's curve, or one that nobody measured; assumed

}  // namespace

// Rows out of sample that `cpsim validate` prints, their 80th percentiles, rounded up.
double collective_width(bool measured, bool across, bool nvlink, double bytes) {
  const double mib = bytes / (1 << 20);
  const std::size_t size = mib >= 64 ? 0 : mib >= 1 ? 1 : 2;
  constexpr double kMeasured[] = {0.05, 0.21, 0.24};
  // PCIe: one server's rings are twice as slow as its all-to-alls let expect.
  constexpr double kInside[] = {0.10, 0.19, 0.12}, kPcie[] = {0.6, 0.6, 0.45};
  // Fitted to one system, and its own rows lie within half of this.
  constexpr double kAcross[] = {0.20, 0.30, 0.35};
  return measured ? kMeasured[size] : across ? kAcross[size] : nvlink ? kInside[size] : kPcie[size];
}

CollectiveEstimate collective_estimate(CollectiveKind kind, double bytes, std::span<const Rank> gpus,
                                       const Cluster& cluster, const CollectiveSettings& settings) {
  const Spread spread = spread_of(gpus, cluster);
  const bool across = spread.islands > 1;
  const Curve& pairs = across ? cluster.transfer.inter_node : cluster.transfer.intra_node;
  CollectiveEstimate estimate;
  const CollectiveCurve* curve = measured(kind, spread, cluster, settings);
  const Source* source = nullptr;  // of the curve that it goes along
  if (curve != nullptr) {
    source = cluster.source_of(str("collectives[", curve - cluster.collectives.data(), "].time_us"));
  } else if (kind == CollectiveKind::send_recv && !pairs.empty()) {
    source = cluster.source_of(across ? "transfer.inter_node" : "transfer.intra_node");
  }
  if (curve == nullptr && kind == CollectiveKind::send_recv && !pairs.empty()) {
    const double latency_us = across ? cluster.network.latency_us : cluster.transfer.intra_node_latency_us;
    estimate.us = bytes / transfer_gbps(pairs, latency_us, bytes) / kNsPerUs;
  } else {
    estimate.us = collective_ns(kind, bytes, spread, cluster, settings) / kNsPerUs;
    if (curve == nullptr)
      estimate.choice = fastest(collective_choices(kind, spread, cluster, settings), bytes);
  }
  if (source != nullptr) estimate.curve = source->provenance.origin;
  double share =
      collective_width(is_first_hand(source), across, cluster.node.nvlink_gbps > 0 && spread.nvlink, bytes);
  if (is_second_hand(source)) share = std::max(share, kSecondHand);
  estimate.low_us = estimate.us / (1 + share), estimate.high_us = estimate.us * (1 + share);
  return estimate;
}

double collective_ns(const Collective& collective, const Plan& plan, const Cluster& cluster,
                     const CollectiveSettings& settings) {
  const std::vector<Rank>& ranks = plan.groups[static_cast<std::size_t>(group_of(collective))].ranks;
  return collective_ns(collective, plan, spread_of(ranks, cluster), cluster, settings);
}

double collective_ns(const Collective& collective, const Plan& plan, const Spread& spread,
                     const Cluster& cluster, const CollectiveSettings& settings) {
  const auto bytes = [&](const View& view) {
    return static_cast<double>(view.numel() *
                               size_bytes(plan.buffers[static_cast<std::size_t>(view.buffer)].dtype));
  };
  const bool region = joins_regions(plan.groups[static_cast<std::size_t>(group_of(collective))].name);
  const auto reduced = [&](CollectiveKind kind, double size) {
    return region ? region_ns(kind, size, spread, cluster, settings)
                  : collective_ns(kind, size, spread, cluster, settings);
  };
  return std::visit(
      [&](const auto& op) -> double {
        using T = std::remove_cvref_t<decltype(op)>;
        if constexpr (std::is_same_v<T, AllGather>) {
          return reduced(CollectiveKind::all_gather, bytes(op.out));
        } else if constexpr (std::is_same_v<T, ReduceScatter>) {
          return reduced(CollectiveKind::reduce_scatter, bytes(op.in));
        } else if constexpr (std::is_same_v<T, AllReduce>) {
          return reduced(CollectiveKind::all_reduce, bytes(op.in));
        } else if constexpr (std::is_same_v<T, AllToAll>) {
          return collective_ns(CollectiveKind::all_to_all, bytes(op.in), spread, cluster, settings);
        } else if constexpr (std::is_same_v<T, Broadcast>) {
          return collective_ns(CollectiveKind::broadcast, bytes(op.out), spread, cluster, settings);
        } else {
          CP_INVARIANT(false, "the transfers of an exchange are flows");
          return 0;
        }
      },
      collective);
}

}  // namespace cp::sim

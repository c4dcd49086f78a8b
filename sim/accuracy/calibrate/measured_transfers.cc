// nccl-tests and tables of pairs: collectives and transfers.
#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/nearest.h"
#include "shared/base/text.h"
#include "sim/accuracy/calibrate/calibrate.h"
#include "sim/accuracy/calibrate/points.h"
#include "sim/cost/timeline/collective_cost.h"

namespace cp::sim {
namespace {

using detail::Points;

struct Operation {
  std::string name, test, curve;
  std::optional<CollectiveKind> kind;  // none: transfers
  double busy_rounds;                  // busbw / algbw is this times (n - 1) / n; 0: it is 1
};

const std::vector<Operation>& operations() {
  static const std::vector<Operation> all = {
      {"all_gather", "all_gather_perf", "all_gather", CollectiveKind::all_gather, 1},
      {"reduce_scatter", "reduce_scatter_perf", "reduce_scatter", CollectiveKind::reduce_scatter, 1},
      {"all_reduce", "all_reduce_perf", "all_reduce", CollectiveKind::all_reduce, 2},
      {"all_to_all", "alltoall_perf", "all_to_all", CollectiveKind::all_to_all, 1},
      {"send_recv", "sendrecv_perf", "exchange", std::nullopt, 0},
  };
  return all;
}

const Operation& operation_of(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Operation& operation : operations()) {
    if (name == operation.name || name == operation.curve || name == operation.test) return operation;
    names.push_back(operation.name);
  }
  throw InvalidInput(str("unknown operation '", name, "'; the nearest one is '", nearest_name(name, names),
                         "'; use one of ", join(names, ", ")));
}

struct Extent {
  int gpus = 0, nodes = 0;
};

Extent extent_of(const NcclOutput& output, std::string_view file, int gpus, int nodes,
                 const Cluster& cluster) {
  const Extent extent{output.gpus > 0 ? output.gpus : gpus,
                      output.nodes > 0 ? output.nodes : std::max(1, nodes)};
  if (extent.gpus == 0) {
    throw InvalidInput(
        str(file,
            ": no line says '# Rank N ... on HOST', so the number of GPUs is unknown; add, for example, "
            "--gpus 8 --nodes 1"));
  }
  const int most = extent.nodes * cluster.node.gpus;
  if (extent.gpus >= 2 && extent.gpus % extent.nodes == 0 && extent.gpus <= most) return extent;
  throw InvalidInput(str(file, ": ", extent.gpus, " GPUs on ", extent.nodes,
                         " nodes do not go together: a collective has 2 to ", most,
                         " GPUs there, the same number on each node, since a node of ", cluster.name, " has ",
                         cluster.node.gpus, "; give --gpus and --nodes as they were measured"));
}

// The bus bandwidth says which operation it was, and of how many GPUs.
void check_factor(const NcclRow& row, const Operation& operation, const Extent& extent) {
  const double blocks = 1 - 1.0 / extent.gpus;
  const double factor = operation.busy_rounds == 0 ? 1 : operation.busy_rounds * blocks;
  const double rounding = row.bus_rounding + factor * row.algorithm_rounding;
  if (std::abs(row.bus_gbps - factor * row.algorithm_gbps) <= rounding * (1 + 1e-9)) return;
  throw InvalidInput(str(row.where, ": busbw ", row.bus_gbps, " is not ", factor, " times algbw ",
                         row.algorithm_gbps, ", as it is for ", operation.name, " on ", extent.gpus,
                         " GPUs; name the operation that was measured, and its --gpus"));
}

std::vector<Rank> gpus_of(const Extent& extent, const Cluster& cluster) {
  const int on_node = extent.gpus / extent.nodes;
  std::vector<Rank> gpus;
  for (int i = 0; i < extent.gpus; ++i) gpus.push_back(i / on_node * cluster.node.gpus + i % on_node);
  return gpus;
}

MeasuredTime collective_time(const NcclRow& row, const Operation& operation, const Extent& extent) {
  const double bytes = row.bytes;
  if (!operation.kind) {
    return {row.where, row.time_us,
            [=](const Cluster& cluster) { return detail::swap_us(bytes, extent.nodes > 1, cluster); }};
  }
  return {row.where, row.time_us, [bytes, kind = *operation.kind, extent](const Cluster& cluster) {
            Cluster large = cluster;
            large.nodes = std::max(cluster.nodes, extent.nodes);
            return collective_ns(kind, bytes, gpus_of(extent, large), large) / 1e3;
          }};
}

std::string put_collective(Cluster& cluster, const std::string& operation, const Extent& extent,
                           const Curve& curve) {
  std::size_t i = 0;
  for (; i < cluster.collectives.size(); ++i) {
    const CollectiveCurve& known = cluster.collectives[i];
    if (known.operation == operation && known.gpus == extent.gpus && known.nodes == extent.nodes &&
        known.channels_per_net_peer == 0)
      break;
  }
  if (i == cluster.collectives.size())
    cluster.collectives.push_back({operation, extent.gpus, extent.nodes, 0, {}});
  cluster.collectives[i].time_us = curve;
  return str("collectives[", i, "].time_us");
}

std::string put_transfer(Cluster& cluster, bool across, const Curve& curve) {
  (across ? cluster.transfer.inter_node : cluster.transfer.intra_node) = curve;
  return across ? "transfer.inter_node" : "transfer.intra_node";
}

detail::Peak link_peak(bool across, const Cluster& cluster) {
  if (across) return {cluster.network.nic_gbps, "network.nic_gbps", "GB/s"};
  const Node& node = cluster.node;
  if (node.nvlink_gbps > 0) return {node.nvlink_gbps, "node.nvlink_gbps", "GB/s"};
  return {node.pcie_gbps, "node.pcie_gbps", "GB/s"};
}

std::string pair_text(bool across) {
  return across ? "transfers between nodes" : "transfers inside of a node";
}

MeasuredCurve transfer_curve(bool across, std::string_view file, const Points& points,
                             std::vector<MeasuredTime> rows) {
  return {pair_text(across), std::string(file), detail::without_falls(points.curve(), true), std::move(rows),
          [across](Cluster& cluster, const Curve& curve) { return put_transfer(cluster, across, curve); }};
}

}  // namespace

std::vector<MeasuredCurve> nccl_curves(std::string_view name, const NcclOutput& output, std::string_view file,
                                       int gpus, int nodes, const Cluster& cluster) {
  const Operation& operation = operation_of(name);
  if (!output.test.empty() && output.test != operation.test) {
    throw InvalidInput(str(file, ": the file holds the output of ", output.test, ", not of ", operation.test,
                           "; name the operation that was measured in --nccl-tests OPERATION=FILE"));
  }
  const Extent extent = extent_of(output, file, gpus, nodes, cluster);
  const bool across = extent.nodes > 1;
  Points times, rates;
  std::vector<MeasuredTime> rows;
  for (const NcclRow& row : output.rows) {
    check_factor(row, operation, extent);
    times.add(row.bytes, row.time_us);
    rows.push_back(collective_time(row, operation, extent));
    if (operation.kind) continue;
    const double gbps = row.bytes / (row.time_us * 1e3);
    detail::check_rate(row.where, gbps, link_peak(across, cluster), cluster);
    rates.add(row.bytes, gbps);
  }
  std::vector<MeasuredCurve> curves;
  if (!operation.kind) curves.push_back(transfer_curve(across, file, rates, rows));
  curves.push_back({str(operation.name, ", ", extent.gpus, " GPUs of ", extent.nodes,
                        extent.nodes == 1 ? " node" : " nodes"),
                    std::string(file), detail::without_falls(times.curve(), false), std::move(rows),
                    [curve_name = operation.curve, extent](Cluster& to, const Curve& curve) {
                      return put_collective(to, curve_name, extent, curve);
                    }});
  return curves;
}

std::vector<MeasuredCurve> transfer_curves(const std::vector<CsvRow>& table, std::string_view file,
                                           const Cluster& cluster) {
  std::vector<MeasuredCurve> curves;
  for (const bool across : {false, true}) {
    const char* column = across ? "inter_node_gbps" : "intra_node_gbps";
    Points points;
    std::vector<MeasuredTime> rows;
    for (const CsvRow& row : table) {
      if (!detail::has_cell(row, column)) continue;
      const double bytes = detail::above_0(row, "payload_bytes"), gbps = detail::above_0(row, column);
      detail::check_rate(row.where(), gbps, link_peak(across, cluster), cluster);
      points.add(bytes, gbps);
      rows.push_back({row.where(), bytes / (gbps * 1e3),
                      [=](const Cluster& at) { return detail::swap_us(bytes, across, at); }});
    }
    if (!points.empty()) curves.push_back(transfer_curve(across, file, points, std::move(rows)));
  }
  if (curves.empty()) {
    throw InvalidInput(
        str(file,
            ":1: the table has no rate; name the columns payload_bytes,intra_node_gbps,inter_node_gbps, "
            "either of the last two may be missing"));
  }
  return curves;
}

}  // namespace cp::sim

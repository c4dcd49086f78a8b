#include "sim/cost/cluster/cluster.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

#include "shared/base/nearest.h"
#include "shared/mesh/mesh.h"
#include "sim/cost/cluster/cluster_fields.h"

namespace cp::sim {
namespace {

using Errors = std::vector<FieldError>;

// A GPU runs one rank, and a mesh has no more ranks than this: GPUs beyond it could not be used, and their
// numbers would not stay within 32 bits.
constexpr int kMaxGpus = Mesh::kMaxRanks;

void check_nodes(const Cluster& cluster, Errors& errors) {
  const int of_node = cluster.node.gpus, most = kMaxGpus / std::clamp(of_node, 1, kMaxGpus);
  if (cluster.nodes < 1) {
    errors.push_back({"nodes", str(cluster.nodes, " is not in [1, ", most, "]")});
  } else if (cluster.nodes > most) {
    errors.push_back({"nodes", str(cluster.nodes, " nodes of ", of_node, " GPUs are ",
                                   std::int64_t{cluster.nodes} * of_node, " GPUs, and at most ", kMaxGpus,
                                   " can be numbered; use at most ", most)});
  }
}

void check_memory(const Gpu& gpu, Errors& errors) {
  if (gpu.usable_memory_gib <= gpu.memory_gib) return;
  errors.push_back({"gpu.usable_memory_gib", str(gpu.usable_memory_gib, " is more than gpu.memory_gib, ",
                                                 gpu.memory_gib, "; use at most that")});
}

void check_node(const Node& node, Errors& errors) {
  const bool inside = node.nvlink_domain <= node.gpus && node.gpus % node.nvlink_domain == 0;
  if (!inside && node.nvlink_domain % node.gpus != 0) {
    errors.push_back({"node.nvlink_domain", str(node.nvlink_domain, " neither divides node.gpus, ", node.gpus,
                                                ", nor is a multiple of it; use ", node.gpus)});
  }
  if (node.nvlink_gbps == 0 && node.nvlink_domain != 1) {
    errors.push_back({"node.nvlink_domain", str(node.nvlink_domain,
                                                " needs an nvlink_gbps above 0; without "
                                                "NVLink use 1")});
  }
  if (node.gpus_per_pcie_switch > node.gpus) {
    errors.push_back({"node.gpus_per_pcie_switch", str(node.gpus_per_pcie_switch, " is more than node.gpus, ",
                                                       node.gpus, "; use at most that")});
  }
}

void check_network(const Cluster& cluster, Errors& errors) {
  const int sharing = cluster.network.gpus_per_nic, gpus = cluster.node.gpus;
  if (sharing <= gpus && gpus % sharing == 0) return;
  errors.push_back({"network.gpus_per_nic", str(sharing, " does not divide node.gpus, ", gpus,
                                                "; use a divisor of it, for example ", gpus)});
}

// No point above what is possible.
void check_peak(const std::string& field, const Curve& curve, double peak, const std::string& peak_name,
                Errors& errors) {
  for (const CurvePoint& point : curve.points()) {
    if (point.y <= peak) continue;
    errors.push_back(
        {field, str("the point (", point.x, ", ", point.y, ") is above ", peak_name, ", ", peak)});
    return;
  }
}

// 67108864 rather than 6.71089e+07.
std::string text_of(double number) {
  const bool whole = number == std::floor(number) && number < 1e15;
  return whole ? str(static_cast<std::int64_t>(number)) : str(number);
}

// No point that is over sooner than one of fewer bytes. `us`: of a point.
template <class Us>
void check_time(const std::string& field, const Curve& curve, const Us& us, Errors& errors) {
  constexpr double kRounding = 1e-9;  // of rates that were worked out from times
  const std::vector<CurvePoint>& points = curve.points();
  for (std::size_t i = 1; i < points.size(); ++i) {
    const double before = us(points[i - 1]), now = us(points[i]);
    if (now >= before * (1 - kRounding)) continue;
    errors.push_back(
        {field, str("the point (", text_of(points[i].x), ", ", text_of(points[i].y), ") takes ", now,
                    " us, less than the ", before, " us of (", text_of(points[i - 1].x), ", ",
                    text_of(points[i - 1].y),
                    ") before it, and time does not fall as bytes grow; leave one of the two out")});
    return;
  }
}

void check_times(const Cluster& cluster, Errors& errors) {
  const auto of_rate = [](const CurvePoint& point) { return point.x / point.y * 1e-3; };
  const auto of_time = [](const CurvePoint& point) { return point.y; };
  check_time("transfer.intra_node", cluster.transfer.intra_node, of_rate, errors);
  check_time("transfer.inter_node", cluster.transfer.inter_node, of_rate, errors);
  const double hbm = cluster.gpu.hbm_gbps;
  check_time(
      "memory_efficiency", cluster.memory_efficiency,
      [&](const CurvePoint& point) {
        return of_rate({point.x, point.y * hbm});
      },
      errors);
  for (std::size_t i = 0; i < cluster.collectives.size(); ++i) {
    check_time(str("collectives[", i, "].time_us"), cluster.collectives[i].time_us, of_time, errors);
  }
}

void check_curves(const Cluster& cluster, Errors& errors) {
  const bool nvlink = cluster.node.nvlink_gbps > 0;
  check_peak("transfer.intra_node", cluster.transfer.intra_node,
             nvlink ? cluster.node.nvlink_gbps : cluster.node.pcie_gbps,
             nvlink ? "node.nvlink_gbps" : "node.pcie_gbps", errors);
  check_peak("transfer.inter_node", cluster.transfer.inter_node, cluster.network.nic_gbps, "network.nic_gbps",
             errors);
  check_peak("matmul_efficiency", cluster.matmul_efficiency, 1, "the peak", errors);
  check_peak("fp8_efficiency", cluster.fp8_efficiency, 1, "the peak", errors);
  check_peak("memory_efficiency", cluster.memory_efficiency, 1, "the peak", errors);
  for (std::size_t i = 0; i < cluster.attention.size(); ++i) {
    const AttentionCurve& curve = cluster.attention[i];
    const std::string name = str("attention[", i, "]");
    check_peak(name + ".tflops", curve.tflops, cluster.gpu.tflops_16, "gpu.tflops_16", errors);
    if (curve.head_dim < 1) errors.push_back({name, str("head_dim ", curve.head_dim, " is not in [1, ...)")});
    if (curve.tflops.empty()) errors.push_back({name, "has no tflops"});
    for (std::size_t j = 0; j < i; ++j) {
      const AttentionCurve& other = cluster.attention[j];
      if (other.backward == curve.backward && other.causal == curve.causal &&
          other.head_dim == curve.head_dim && other.kernel == curve.kernel) {
        errors.push_back({name, str("is of the same kernel as attention[", j, "]; keep one")});
      }
    }
  }
}

void check_collectives(const Cluster& cluster, Errors& errors) {
  static const std::vector<std::string_view> operations = {"all_gather", "reduce_scatter", "all_reduce",
                                                           "all_to_all", "exchange"};
  for (std::size_t i = 0; i < cluster.collectives.size(); ++i) {
    const CollectiveCurve& curve = cluster.collectives[i];
    const std::string name = str("collectives[", i, "]");
    if (std::find(operations.begin(), operations.end(), curve.operation) == operations.end()) {
      errors.push_back(
          {name, str("unknown operation '", curve.operation, "'; the nearest one is '",
                     nearest_name(curve.operation, operations), "'; use one of ", join(operations, ", "))});
    }
    if (curve.nodes < 1 || curve.gpus < 2 || curve.gpus % std::max(curve.nodes, 1) != 0) {
      errors.push_back({name, str("gpus ", curve.gpus, " on nodes ", curve.nodes,
                                  " are not 2 or more, the same number on each node")});
    }
    if (curve.channels_per_net_peer < 0) {
      errors.push_back({name, str("channels_per_net_peer ", curve.channels_per_net_peer,
                                  " is below 0, the library's own choice")});
    }
    if (curve.time_us.empty()) errors.push_back({name, "has no time_us"});
    for (std::size_t j = 0; j < i; ++j) {
      const CollectiveCurve& other = cluster.collectives[j];
      if (other.operation == curve.operation && other.gpus == curve.gpus && other.nodes == curve.nodes &&
          other.channels_per_net_peer == curve.channels_per_net_peer) {
        errors.push_back({name, str("is of the same collective as collectives[", j, "]; keep one")});
      }
    }
  }
}

}  // namespace

const Source* Cluster::source_of(std::string_view field) const { return find_source(sources, field); }

std::vector<FieldError> cluster_errors(const Cluster& cluster) {
  Errors errors;
  if (cluster.name.empty()) errors.push_back({"name", "is empty; add, for example, name: \"mine\""});
  check_nodes(cluster, errors);
  for_each_number(cluster, [&](const char* field, const auto& number, const Range& range, Need) {
    const std::string error = range_error(number, range);
    if (!error.empty()) errors.push_back({field, error});
  });
  if (!errors.empty()) return errors;  // what follows compares numbers with each other
  check_memory(cluster.gpu, errors);
  check_node(cluster.node, errors);
  check_network(cluster, errors);
  check_curves(cluster, errors);
  check_times(cluster, errors);
  check_collectives(cluster, errors);
  return errors;
}

void validate_cluster(const Cluster& cluster) {
  raise(str("cluster ", cluster.name), cluster_errors(cluster));
}

}  // namespace cp::sim

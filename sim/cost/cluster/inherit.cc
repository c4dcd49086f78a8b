#include "sim/cost/cluster/inherit.h"

#include <algorithm>
#include <utility>

#include "shared/base/text.h"
#include "sim/cost/cluster/sourced_text.h"
#include "sim/cost/timeline/nccl_model.h"

namespace cp::sim {
namespace {

double inside_gbps(const Cluster& cluster) {
  return cluster.node.nvlink_gbps > 0 ? cluster.node.nvlink_gbps : cluster.node.pcie_gbps;
}

double network_gbps(const Cluster& cluster) {
  return cluster.network.nic_gbps / cluster.network.gpus_per_nic;
}

class Inheritance {
 public:
  Inheritance(const Cluster& base, const std::function<bool(const std::string&)>& given, Cluster& cluster)
      : base_(base), given_(given), cluster_(cluster) {}

  void rescale() {
    const double pcie = cluster_.node.pcie_gbps / base_.node.pcie_gbps;
    number("node.pcie_root_gbps", pcie, "node.pcie_gbps", cluster_.node.pcie_root_gbps);
    number("node.pcie_host_gbps", pcie, "node.pcie_gbps", cluster_.node.pcie_host_gbps);
    transfer("transfer.intra_node", inside_gbps, "the links inside of a node", cluster_.transfer.intra_node);
    transfer("transfer.inter_node", network_gbps, "a GPU's part of the NICs", cluster_.transfer.inter_node);
    if (!given_("collectives[0]")) {
      for (std::size_t i = 0; i < cluster_.collectives.size(); ++i) collective(i);
    }
    const double peak = cluster_.gpu.tflops_16 / base_.gpu.tflops_16;
    if (peak == 1 || given_("attention[0]")) return;
    for (std::size_t i = 0; i < cluster_.attention.size(); ++i) {
      std::vector<CurvePoint> points = cluster_.attention[i].tflops.points();
      for (CurvePoint& point : points) point.y *= peak;
      cluster_.attention[i].tflops = Curve(std::move(points));
      note(str("attention[", i, "].tflops"), peak, "tflops_16");
    }
  }

 private:
  // What the base said of it, and what became of it.
  void note(const std::string& field, double ratio, const std::string& of) {
    const Source* source = cluster_.source_of(field);
    const std::string known = source == nullptr ? base_.name : source->provenance.source,
                      how =
                          source == nullptr ? "" : str("; ", to_string(source->provenance.origin), " there");
    set_source(cluster_.sources, {field,
                                  {Origin::borrowed, str(known, " (", base_.name, "'s times ", ratio,
                                                         ", the ratio of ", of, how, ")")}});
  }

  void number(const std::string& field, double ratio, const std::string& of, double& value) {
    if (ratio == 1 || value == 0 || given_(field)) return;
    value *= ratio;
    note(field, ratio, of);
  }

  template <class Gbps>
  void transfer(const std::string& field, const Gbps& gbps, const std::string& of, Curve& rates) {
    const double ratio = gbps(cluster_) / gbps(base_);
    if (ratio == 1 || rates.empty() || given_(field)) return;
    rates = with_faster_links(rates, ratio, gbps(cluster_));
    note(field, ratio, str("the rate of ", of));
  }

  // A group that the cluster cannot have any more stays as it was: nobody asks for it.
  void collective(std::size_t number) {
    CollectiveCurve& curve = cluster_.collectives[number];
    CollectiveSettings settings;
    if (curve.channels_per_net_peer > 0) settings.channels_per_net_peer = curve.channels_per_net_peer;
    const Spread spread{curve.gpus, curve.nodes, curve.gpus / curve.nodes};
    if (spread.fewest_on_a_node > std::min(base_.node.gpus, cluster_.node.gpus)) return;
    const CollectiveKind kind = collective_kind(curve.operation);
    const auto before = collective_choices(kind, spread, base_, settings),
               after = collective_choices(kind, spread, cluster_, settings);
    std::vector<CurvePoint> points = curve.time_us.points();
    double ratio = 1, slowest = 0;
    for (CurvePoint& point : points) {
      ratio = fastest(after, point.x).us(point.x) / fastest(before, point.x).us(point.x);
      point.y = slowest = std::max(slowest, point.y * ratio);
    }
    if (points == curve.time_us.points()) return;
    curve.time_us = Curve(std::move(points));
    note(str("collectives[", number, "].time_us"), ratio, "the model's times at the last point");
  }

  const Cluster& base_;
  const std::function<bool(const std::string&)>& given_;
  Cluster& cluster_;
};

}  // namespace

Curve with_faster_links(const Curve& rates, double factor, double link_gbps) {
  std::vector<CurvePoint> points = rates.points();
  const double first_ns = points.front().x / points.front().y;
  for (CurvePoint& point : points) {
    const double ns = first_ns + std::max(point.x / point.y - first_ns, 0.0) / factor;
    point.y = std::min(point.x / ns, link_gbps);
  }
  return Curve(std::move(points));
}

void rescale_inherited(const Cluster& base, const std::function<bool(const std::string&)>& given,
                       Cluster& cluster) {
  Inheritance(base, given, cluster).rescale();
}

}  // namespace cp::sim

// What a cluster file keeps of the one that it is like: rescaled by the ratio of the figures that the file
// changes, so that a faster link makes everything that uses it faster, whether its time comes from a figure
// or from a curve.
//
//   transfer.*, collectives    what is beyond the smallest transfer's time shrinks by the ratio of the links;
//                              of a collective the times go as those of sim/cost/timeline/nccl_model.h do
//   attention                  goes as gpu.tflops_16
//   node.pcie_root_gbps, node.pcie_host_gbps    go as node.pcie_gbps
//
// Efficiencies are shares of the figures already.
#pragma once

#include <functional>
#include <string>

#include "sim/cost/cluster/cluster.h"

namespace cp::sim {

// The rates of a transfer over links that are `factor` times as fast and give `link_gbps`.
Curve with_faster_links(const Curve& rates, double factor, double link_gbps);

// `cluster`: was `base`, with the file's numbers since; sources say what was rescaled. `given`: whether the
// file has a field.
void rescale_inherited(const Cluster& base, const std::function<bool(const std::string&)>& given,
                       Cluster& cluster);

}  // namespace cp::sim

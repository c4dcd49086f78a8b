// What a cluster file inherits from the preset that it names in `like`. Inherited curves are rescaled by the
// ratio of the figures that the file changes. So a faster link makes everything faster that uses it, whether
// its time comes from the figure or from a curve.
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

// Returns the rates of a transfer after the links have become `factor` times as fast; they now have
// `link_gbps`.
Curve with_faster_links(const Curve& rates, double factor, double link_gbps);

// Rescales `cluster`, which is a copy of `base` with the file's numbers in it. `given` tells whether the file
// has a field. The sources of rescaled fields say that they were rescaled.
void rescale_inherited(const Cluster& base, const std::function<bool(const std::string&)>& given,
                       Cluster& cluster);

}  // namespace cp::sim

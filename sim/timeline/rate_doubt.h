// What is not known of the rates of a cluster and of software on it, by what their numbers rest on.
#pragma once

#include <cstdint>

#include "sim/cluster/cluster.h"
#include "sim/cluster/software.h"
#include "sim/timeline/drawn_times.h"

namespace cp::sim {

// `head_dim`: of attention; `decode`: of few rows each.
Doubt doubt_of(const Cluster& cluster, const SoftwareProfile& software, std::int64_t head_dim,
               bool decode = false);

// Parts of it, as widths.h counts: of transfers inside of a node, or between nodes; and of products, by the rates' own errors on rows that
// were left out of their fit.
double transfer_width(const Cluster& cluster, bool across_nodes);
double product_width(const Cluster& cluster, LinearPrecision precision);

}  // namespace cp::sim

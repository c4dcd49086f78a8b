// How uncertain the rates of a cluster and of a software on it are, judged by where their numbers come from.
#pragma once

#include <cstdint>

#include "sim/cost/cluster/cluster.h"
#include "sim/cost/cluster/software.h"
#include "sim/cost/timeline/drawn_times.h"

namespace cp::sim {

struct WorkKinds {
  bool decode = false;   // attention is of few rows each
  bool experts = false;  // products are also those of experts
  // Attention's queries meet latent rows that hold the values, too; it counts before `decode`.
  bool absorbed = false;
};
// `head_dim`: of attention.
Doubt doubt_of(const Cluster& cluster, const SoftwareProfile& software, std::int64_t head_dim,
               WorkKinds kinds = {});

// Parts of it, as widths.h counts: of transfers inside of a node, or between nodes; and of products, by the
// rates' own errors on rows that were left out of their fit; those with stored operands, where the software
// has such.
double transfer_width(const Cluster& cluster, bool across_nodes);
double product_width(const Cluster& cluster, LinearPrecision precision);
double product_width(const Cluster& cluster, const SoftwareProfile& software);

}  // namespace cp::sim

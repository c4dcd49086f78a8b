// The text form of clusters in counterexamples.
#pragma once

#include <ostream>

#include "sim/cost/cluster/read_cluster.h"

namespace cp::sim {

inline void showValue(const Cluster& cluster, std::ostream& out) { out << "\n" << write_cluster(cluster); }

}  // namespace cp::sim

#include "sim/cost/timeline/pair_rate.h"

#include <algorithm>
#include <limits>

#include "sim/cost/timeline/nccl_constants.h"

namespace cp::sim {

double together_gbps(const Cluster& cluster) {
  if (cluster.transfer.intra_node.empty()) return std::numeric_limits<double>::infinity();
  double best = 0;
  for (const CurvePoint& point : cluster.transfer.intra_node.points()) best = std::max(best, point.y);
  if (cluster.node.nvlink_gbps == 0) return best;
  return std::min(best, cluster.node.nvlink_gbps / nccl::kPairTime);
}

}  // namespace cp::sim

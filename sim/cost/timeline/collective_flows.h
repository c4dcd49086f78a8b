// A collective as a set of flows that last as long as it does. So it shares links with whatever else is under
// way; alone it takes what collective_ns() says.
#pragma once

#include <vector>

#include "shared/plan/plan.h"
#include "sim/cost/cluster/cluster.h"

namespace cp::sim {

struct CollectiveFlow {
  Rank source = 0, target = 0;
  double bytes = 0;
};

// Returns the flows of a collective that is not an Exchange:
//   ring forms    one ring for each GPU that every node of the group has, at least one; ring c enters and
//                 leaves each node at its member number c by rank (rails), and comes through the others in
//                 between
//   all_to_all    from each to each
// Give each flow the cap `bytes / alone_ns`; then all of them end together after alone_ns if no link is
// short.
std::vector<CollectiveFlow> collective_flows(const Collective& collective, const Plan& plan,
                                             const Cluster& cluster, double alone_ns);

}  // namespace cp::sim

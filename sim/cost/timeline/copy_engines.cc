#include "sim/cost/timeline/copy_engines.h"

#include <algorithm>

#include "shared/base/error.h"
#include "shared/plan/canonical.h"

namespace cp::sim {

void require_copy_engine_reach(const Plan& plan, const Cluster& cluster) {
  for (const Group& group : plan.groups) {
    if (!group.copy_engine || group.ranks.size() < 2) continue;
    const int domain = group.ranks.front() / cluster.node.nvlink_domain;
    const auto beyond = std::find_if(group.ranks.begin(), group.ranks.end(),
                                     [&](Rank rank) { return rank / cluster.node.nvlink_domain != domain; });
    if (cluster.node.nvlink_gbps > 0 && beyond == group.ranks.end()) continue;
    throw InvalidInput(str("group ", canonical_name(group), " is to be served by copy engines, but on ",
                           cluster.name,
                           cluster.node.nvlink_gbps > 0
                               ? str(" rank ", *beyond, " is in another NVLink domain of ",
                                     cluster.node.nvlink_domain, " GPUs than rank ", group.ranks.front())
                               : std::string(" no NVLink joins the GPUs"),
                           "; use --transfers sm, or a group within a domain"));
  }
}

}  // namespace cp::sim

#include "runtime/copy_engine_reach.h"

#include <algorithm>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/plan/canonical.h"

namespace cp::runtime {

void refuse_copy_engines_across(const std::vector<Group>& groups, const std::vector<Rank>& here,
                                bool each_is_a_host) {
  for (const Group& group : groups) {
    if (!group.copy_engine || group.ranks.size() < 2) continue;
    std::vector<Rank> elsewhere;
    for (const Rank rank : group.ranks) {
      if (!here.empty() && std::find(here.begin(), here.end(), rank) == here.end()) elsewhere.push_back(rank);
    }
    if (elsewhere.empty() && !each_is_a_host) continue;
    throw InvalidInput(str("group ", canonical_name(group), " is to be served by copy engines, ",
                           each_is_a_host ? "but its ranks may share GPUs, and are hosts of their own to NCCL"
                                          : str("but rank ", join(elsewhere, ", "), " is on another machine"),
                           ", where they do not reach; use transfers=sm, or a group within one machine",
                           each_is_a_host ? " with a GPU for each rank" : ""));
  }
}

}  // namespace cp::runtime

// A group and a collective on it as all members of the group must know them.
#pragma once

#include <string>
#include <vector>

#include "shared/plan/plan.h"

namespace cp {

std::string canonical_name(const Group& group);  // its name and ranks: "cp[0,1,2,3]"

// The ranks between the last brackets of a group's text; none when there are none.
std::vector<Rank> members_of(const std::string& group);

// "rank 1", "ranks 0, 2"; of many the first eight.
std::string ranks_text(const std::vector<Rank>& ranks);

// What collective_digest() counts of one collective: operation, dtype, counts, reduction, root; of an
// Exchange the full matrix of counts. Equal on all members of the group.
Digest canonical_digest(const Plan& plan, const Collective& collective);

}  // namespace cp

// Names and digests of a group, and of a collective on it, that are equal on all members of the group.
#pragma once

#include <string>
#include <vector>

#include "shared/plan/plan.h"

namespace cp {

std::string canonical_name(const Group& group);  // name and ranks: "cp[0,1,2,3]"

// The ranks between the last brackets of a group's canonical name; empty if there are none.
std::vector<Rank> members_of(const std::string& group);

// For messages: "rank 1", "ranks 0, 2". Of a long list only the first eight are shown, and how many there are
// more.
std::string ranks_text(const std::vector<Rank>& ranks);

// The part of collective_digest() that one collective makes: operation, dtype, counts, reduction and root;
// for an Exchange, the full matrix of counts. Equal on all members of the group.
Digest canonical_digest(const Plan& plan, const Collective& collective);

}  // namespace cp

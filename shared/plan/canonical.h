// One collective as all members of its group must know it.
#pragma once

#include "shared/plan/plan.h"

namespace cp {

// What collective_digest() counts of one collective: operation, dtype, counts, reduction, root; of an Exchange the full matrix of
// counts. Equal on all members of the group.
Digest canonical_digest(const Plan& plan, const Collective& collective);

}  // namespace cp

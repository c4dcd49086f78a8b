// How far copy engines reach: not beyond the GPUs that NVLink joins.
#pragma once

#include <vector>

#include "shared/base/types.h"
#include "shared/plan/plan.h"

namespace cp::runtime {

// Throws InvalidInput for a group with copy_engine that has ranks on another machine than this one, whose
// ranks are `here` (nothing, where they are not known), or where each rank is a host of its own to NCCL,
// since ranks share GPUs: NCCL would move its data by multiprocessors, or refuse puts at their launch. (NCCL
// 2.30.6 takes a processor's thread and the network between machines, for all_gather and all_to_all; nothing
// here has planned or measured that.)
void refuse_copy_engines_across(const std::vector<Group>& groups, const std::vector<Rank>& here,
                                bool each_is_a_host);

}  // namespace cp::runtime

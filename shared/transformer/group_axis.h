// The axis of a layout that a group of a step's plan belongs to.
#pragma once

#include <cstdint>
#include <string_view>

namespace cp {

// tp, cp, ep and pp as in ParallelLayout; fsdp: ranks that hold shards of the same parameters; dp: ranks that
// hold the same shard.
enum class GroupAxis : std::uint8_t { tp, cp, ep, fsdp, dp, pp };

// "tp", "cp", "ep", "fsdp", "dp", "pp".
std::string_view name(GroupAxis axis);

// Of a group of a plan that step_plan() wrote, by the group's name. The names stand in one table
// (group_axis.cc); a group that a writer calls otherwise is an invariant failure, so that its time is never
// counted for an axis that it has nothing to do with. A plan keeps the name alone: an axis in its groups
// would be part of its digest and say the same again.
GroupAxis axis_of_group(std::string_view group);

// Whether its collectives carry rows between tensor-parallel regions: serving systems run these by kernels of
// their own, and no other ones, not even of the same axis. The same table says it, by the name alone, whatever
// plan the group is in; of a name that it does not know, no.
bool joins_regions(std::string_view group);

}  // namespace cp

// Which axis of a layout a communication group of a step's plan belongs to.
#pragma once

#include <cstdint>
#include <string_view>

namespace cp {

// tp, cp, ep and pp are those of ParallelLayout. Ranks of an fsdp group hold shards of the same parameters;
// ranks of a dp group hold the same shard, or the same parameters whole.
enum class GroupAxis : std::uint8_t { tp, cp, ep, fsdp, dp, pp };

// "tp", "cp", "ep", "fsdp", "dp", "pp".
std::string_view name(GroupAxis axis);

// The axis of a group in a plan that step_plan() wrote, found by the group's name. All names stand in one
// table in group_axis.cc. A name that is not in it fails an invariant, so that its time is never counted for
// an axis that it has nothing to do with. Why names and not a field of Group: an axis in the plan would be
// part of its digest and say the same thing again.
GroupAxis axis_of_group(std::string_view group);

// Whether its collectives carry rows between tensor-parallel regions: serving systems run these by kernels of
// their own, and no other ones, not even of the same axis. The same table says it, by the name alone,
// whatever plan the group is in; of a name that it does not know, no.
bool joins_regions(std::string_view group);

}  // namespace cp

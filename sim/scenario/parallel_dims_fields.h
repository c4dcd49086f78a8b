// Degrees in scenarios (message ParallelDims): what they mean, and the meshes and layouts that they stand
// for. Jobs are made from texts; the functions below put the degrees into these texts.
#pragma once

#include "shared/mesh/parallel_dims.h"
#include "traces/scenario.pb.h"

namespace cp::sim {

// What `rule` is used for, if expert_rule is not set. Throws InvalidInput for a degree out of range.
ParallelConfig config_of(const proto::ParallelDims& fields, ExpertRule rule = ExpertRule::peer);
// Of as many ranks as world_size says, or as the degrees need. Throws InvalidInput as the class does, and for
// a dp_shard of -1 if nobody says what it is left of.
ParallelDims dims_of(const proto::ParallelDims& fields, ExpertRule rule = ExpertRule::peer);

// The same job with its degrees in `mesh`, in `layout`, or in `fix`, and without parallel_dims. Each throws
// InvalidInput as dims_of(), for degrees that are given twice, and for those that such a job cannot have.
proto::Redistribute with_mesh(const proto::Redistribute& job);
proto::Attention with_mesh(const proto::Attention& job);
proto::Recurrence with_mesh(const proto::Recurrence& job);
proto::PlanLayouts with_fixed_degrees(const proto::PlanLayouts& job);
proto::Train with_layout(const proto::Train& job);

// Says how many ranks there are to a job that takes all of them and whose degrees leave it open: a dp_shard
// of -1 is what is left of them. Attention and recurrences run on the ranks along cp alone, and stay as they
// are.
void tell_world_size(proto::Scenario& scenario, int ranks);
void tell_world_size(proto::Train& train, int ranks);

}  // namespace cp::sim

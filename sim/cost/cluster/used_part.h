// The part of a large cluster that a few ranks use.
#pragma once

#include "sim/cost/cluster/cluster.h"

namespace cp::sim {

// Returns the cluster with fewer nodes: those that the first `gpus` GPUs need, one more that they do not use,
// and the nodes that complete the leaf switches and NVLink domains of these. Work on the first `gpus` GPUs
// takes the same time on it, but the other nodes, perhaps a million, are neither laid out nor searched.
// Returns the cluster itself if it is not larger than that.
Cluster used_part(Cluster cluster, int gpus);

// Returns one node of the cluster with only `gpus` of its GPUs. `gpus` must divide the node's number; throws
// InvalidInput that names a number which does.
Cluster part_of_node(Cluster cluster, int gpus);

}  // namespace cp::sim

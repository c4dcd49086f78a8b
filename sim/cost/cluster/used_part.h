// What of a large cluster a few ranks use.
#pragma once

#include "sim/cost/cluster/cluster.h"

namespace cp::sim {

// The cluster with no more nodes than the first `gpus` GPUs need, one that they do not use, and what
// completes the leaf switch and the NVLink domain of both: work on those GPUs alone takes the same time on
// it, and a million other nodes are neither laid out nor searched. The cluster itself where it is no larger.
Cluster used_part(Cluster cluster, int gpus);

// One node with so many of its GPUs, which they must divide; throws InvalidInput with a count that does.
Cluster part_of_node(Cluster cluster, int gpus);

}  // namespace cp::sim

// What transfers by copy engines (Group::copy_engine) cost on the timeline.
//
//   kernels     keep their speed beside them: no multiprocessor and none of its shared memory is taken, so
//               SoftwareProfile::forward_progress and backward_progress do not apply. Origin: published, NVIDIA,
//               "Fusing Communication and Compute with New Device API and Copy Engine Collectives in NVIDIA
//               NCCL 2.28" (developer.nvidia.com/blog), for collectives; the discussion 2007 of github.com/
//               NVIDIA/nccl for puts.
//   transfers   take as long as those of multiprocessors. Origin: assumed. Both are bound by the same links;
//               a copy engine has no protocol to pay for and one more synchronization before and after it
//               (ce_coll.cc of NCCL 2.28). Nobody here has measured it; docs/measurements says by what
//               command it would be.
//               Beside kernels they keep their whole rate, whatever TransferCurves::beside_kernels says of
//               others. Origin: assumed, as that figure is of multiprocessors that kernels take from
//                               transfers.
#pragma once

#include "shared/plan/plan.h"
#include "sim/cost/cluster/cluster.h"

namespace cp::sim {

// Throws InvalidInput if the plan has a group with copy_engine whose ranks NVLink does not join on the
// cluster: they reach no further, and NCCL then takes multiprocessors or refuses.
void require_copy_engine_reach(const Plan& plan, const Cluster& cluster);

}  // namespace cp::sim

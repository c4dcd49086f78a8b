// Before its first use, the ranks compare their plans over the control plane (contract 2 of the
// architecture).
#pragma once

#include "runtime/rendezvous/client.h"
#include "shared/plan/plan.h"
#include "shared/plan/plan_digests.h"

namespace cp::runtime {

using cp::plan_difference;
using cp::plan_digests;
using cp::PlanDigests;

// Called by all ranks of the job. Throws CollectiveMismatch on all of them, with the same text, when plans
// differ: who differs from whom, in the inputs or in the collectives of which group; Timeout when a rank does
// not come.
void compare_plans(RendezvousClient& client, const PlanDigests& digests,
                   RendezvousClient::TimeLimit limit = {});
void compare_plans(RendezvousClient& client, const Plan& plan, RendezvousClient::TimeLimit limit = {});

// Called by the members of the plan's groups, each for its own plan and all in one order: within each group,
// while other groups do other things. Throws as above, with what differs on the ranks of the group.
class GroupPlanComparison {
 public:
  explicit GroupPlanComparison(RendezvousClient& client) : client_(client) {}  // which must outlive it
  void compare(const Plan& plan);

 private:
  RendezvousClient& client_;
};

}  // namespace cp::runtime

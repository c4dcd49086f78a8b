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

// All ranks of the job must call this. If plans differ, it throws CollectiveMismatch on all ranks with the
// same text, which says who differs from whom, and whether in the inputs or in the collectives of a group.
// Throws Timeout if a rank does not come.
void compare_plans(RendezvousClient& client, const PlanDigests& digests,
                   RendezvousClient::TimeLimit limit = {});
void compare_plans(RendezvousClient& client, const Plan& plan, RendezvousClient::TimeLimit limit = {});

// Compares plans within each of their groups, while other groups may do other things. The members of the
// plan's groups call it, each with its own plan, and all in the same order. Throws as above, on the ranks of
// the group that differs.
class GroupPlanComparison {
 public:
  explicit GroupPlanComparison(RendezvousClient& client) : client_(client) {}  // which must outlive it
  void compare(const Plan& plan);

 private:
  RendezvousClient& client_;
};

}  // namespace cp::runtime

// The digests by which ranks compare their plans before they run them (contract 2 of docs/architecture.md).
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "shared/plan/dissent.h"
#include "shared/plan/plan.h"

namespace cp {

// `inputs` must be equal on all ranks, and a group's `collectives` on all members of the group.
struct PlanDigests {
  struct GroupDigest {
    std::string group;  // "cp[0,1,2,3]": its name and ranks
    Digest collectives;
  };
  Digest inputs;  // digest of what the builder was given
  std::vector<GroupDigest> groups;
};

PlanDigests plan_digests(const Plan& plan);

// What differs, and on which ranks: those that all differences point to.
struct PlanDifference {
  std::string text;  // empty if nothing differs
  Dissent dissent;
};
PlanDifference compare_plan_digests(const std::map<Rank, PlanDigests>& ranks);

// Only the text of the difference.
std::string plan_difference(const std::map<Rank, PlanDigests>& ranks);

// Both throw CollectiveMismatch, with facts, if the digests differ.
void require_equal_plans(const std::map<Rank, PlanDigests>& ranks);
void require_equal_plans(std::span<const Plan> plans);

}  // namespace cp

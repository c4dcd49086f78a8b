// What a rank's plan says of itself, and whether all ranks say the same (contract 2 of the architecture).
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "shared/plan/dissent.h"
#include "shared/plan/plan.h"

namespace cp {

// Equal on all ranks, and, of each group, on all members.
struct PlanDigests {
  struct GroupDigest {
    std::string group;  // "cp[0,1,2,3]": its name and ranks
    Digest collectives;
  };
  Digest inputs;  // of what the builder was given
  std::vector<GroupDigest> groups;
};

PlanDigests plan_digests(const Plan& plan);

// What differs, and on whom: the ranks that all differences fit.
struct PlanDifference {
  std::string text;  // empty when nothing differs
  Dissent dissent;
};
PlanDifference compare_plan_digests(const std::map<Rank, PlanDigests>& ranks);

// In words alone.
std::string plan_difference(const std::map<Rank, PlanDigests>& ranks);

// Throws CollectiveMismatch, with facts, when the digests differ.
void require_equal_plans(const std::map<Rank, PlanDigests>& ranks);
void require_equal_plans(std::span<const Plan> plans);

}  // namespace cp

// What a device knows of each step of the plan that it has prepared, found once and used each time the step runs.
#pragma once

#include <unordered_map>

#include "shared/base/digest.h"
#include "shared/plan/plan.h"

namespace cp::runtime {

struct StepFacts {
  StepId id = 0;
  // Of a collective: canonical_digest() and the inputs of its plan. So equal collectives of two plans are not the same: what the plans do
  // between them may differ.
  Digest collective;
};

// Of each step; the plan outlives them.
std::unordered_map<const Step*, StepFacts> step_facts(const Plan& plan);

// The digest of all collectives of a group, from that of all before the latest (at first {}) and the latest's. Equal on two members
// where both have begun the same collectives of the same plans in the same order.
Digest continued(const Digest& before, const Digest& collective);

}  // namespace cp::runtime

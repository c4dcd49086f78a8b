// A law of plans: whatever field of a step changes, the plan's digest and its text change too.
#pragma once

#include <cstdint>

#include "sim/base/numbers.h"
#include "sim/fuzz/judge.h"

namespace cp::sim {

// How many ways there are to change one field of one step of the plan. A digest must tell each of them from
// the plan.
std::int64_t num_field_changes(const Plan& plan);

// The plan with the change of one number, 0 .. num_field_changes() - 1, and a few words that name the change.
struct ChangedPlan {
  Plan plan;
  std::string what;
};
ChangedPlan with_field_changed(const Plan& plan, std::int64_t number);

// Draws a plan of steps of attention and recurrences, some with masks and some with operands that are absent.
// No device could run it: it only has to have all the fields.
Plan draw_steps(std::uint64_t seed);

// Tries a few changes, drawn from the seed: each must give another digest and another text. Throws
// PropertyFailure ("fields").
void check_fields(const Plan& plan, std::uint64_t seed, const Trial& trial);
// Checks that the plan comes back from its text and from its bytes. Throws PropertyFailure ("texts").
void check_texts(const Plan& plan, const Trial& trial);

}  // namespace cp::sim

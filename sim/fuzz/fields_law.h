// The forms of a plan against its fields: whatever field of a step changes, the plan's digest and its text
// change too.
#pragma once

#include <cstdint>

#include "sim/base/numbers.h"
#include "sim/fuzz/judge.h"

namespace cp::sim {

// How many single changes of fields of the plan's steps there are; each is one that a digest must tell.
std::int64_t num_field_changes(const Plan& plan);
// The plan with the change of that number, and a word for it.
struct ChangedPlan {
  Plan plan;
  std::string what;
};
ChangedPlan with_field_changed(const Plan& plan, std::int64_t number);

// A plan of attention steps with masks and with operands that are absent, drawn; not one that any device
// runs.
Plan draw_attention_steps(std::uint64_t seed);

// Of a few changes, drawn from the seed: another digest, another text. The plan itself comes back from its
// text and its bytes.
void check_fields(const Plan& plan, std::uint64_t seed, const Trial& trial);
void check_texts(const Plan& plan, const Trial& trial);

}  // namespace cp::sim

#include "runtime/step_facts.h"

#include <variant>

#include "shared/plan/canonical.h"

namespace cp::runtime {

std::unordered_map<const Step*, StepFacts> step_facts(const Plan& plan) {
  std::unordered_map<const Step*, StepFacts> facts;
  for (const StepRef& ref : steps_of(plan)) {
    StepFacts& of = facts[ref.step];
    of.id = ref.id;
    if (const auto* collective = std::get_if<Collective>(&ref.step->work))
      of.collective = Hasher().add(plan.inputs).add(canonical_digest(plan, *collective)).digest();
  }
  return facts;
}

Digest continued(const Digest& before, const Digest& collective) {
  return Hasher().add(before).add(collective).digest();
}

}  // namespace cp::runtime

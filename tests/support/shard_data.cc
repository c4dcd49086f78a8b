#include "tests/support/shard_data.h"

namespace cp::testing {

std::vector<const Collective*> collectives_of(const Plan& plan) {
  std::vector<const Collective*> collectives;
  for (const StepRef& ref : steps_of(plan)) {
    if (const auto* collective = std::get_if<Collective>(&ref.step->work)) collectives.push_back(collective);
  }
  return collectives;
}

}  // namespace cp::testing

#include "shared/plan/step_text.h"

#include "shared/base/text.h"

namespace cp {

std::string step_text(const Plan& plan, StepId step) {
  const StepRef ref = steps_of(plan)[static_cast<std::size_t>(step)];
  const std::string label = ref.step->label.empty() ? "" : str(" \"", ref.step->label, "\"");
  return str("step ", step, " ", operation_name(ref.step->work), label);
}

}  // namespace cp

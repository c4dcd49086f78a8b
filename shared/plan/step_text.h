// A step in the words of messages.
#pragma once

#include <string>

#include "shared/plan/plan.h"

namespace cp {

// step 4 copy "unpack"
std::string step_text(const Plan& plan, StepId step);

}  // namespace cp

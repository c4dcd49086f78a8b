// Whether processes did what the simulated fabric does.
#pragma once

#include <string_view>
#include <vector>

#include "shared/plan/trace.h"

namespace cp::cli {

// Compares the ranks' traces with the simulated fabric's, and prints one line, or what differs. Returns
// whether they are identical. Throws InvalidInput if the result cannot be written.
bool equals_fabric(std::vector<RankTrace> simulated, std::string_view backend,
                   std::vector<RankTrace> measured);

}  // namespace cp::cli

// The ranges that numbers of fitted rates must lie in. They are chosen: wide enough for every GPU, and narrow
// enough to notice a wrong unit.
#pragma once

#include "sim/cost/cluster/sourced_text.h"

namespace cp::sim {

inline constexpr Range kShare{1e-6, 1}, kMicroseconds{1e-3, 1e6}, kTflops{1e-6, 1e6}, kBlend{1, 100},
    kError{0, 1e3};

}  // namespace cp::sim

// What must hold of the times of any plans: they end, no link carries more than it can, no rank receives in less time than its bytes
// take, and folded replays are the simulated ones.
#pragma once

#include <span>
#include <string>

#include "shared/plan/plan.h"
#include "sim/fuzz/judge.h"

namespace cp::sim {

// `plans`: of all ranks, which have passed check(). `cluster`: a preset; as many nodes as the last rank needs. Few ranks are spread over two
// to four smaller nodes of that kind too, where that divides them.
void check_timeline(std::span<const Plan> plans, const std::string& cluster, const Trial& trial);

}  // namespace cp::sim

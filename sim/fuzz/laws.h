// Laws that hold between a case and another one made from it, or between two ways to say the same.
#pragma once

#include <vector>

#include "shared/context_parallel/attention_plan.h"
#include "shared/redistribute/gradient.h"
#include "sim/fuzz/judge.h"
#include "sim/run/attention_run.h"
#include "sim/scenario/redistribute_request.h"

namespace cp::sim {

// Those of the case's laws that it asks for. `planned`: what the request gave. Laws whose search or data would take too long for a case
// of this size say nothing of it.
void check_redistribution_laws(const RedistributeRequest& request, const Gradient& planned,
                               const Trial& trial);

// Of its index sets and meshes: they need no plan.
void check_placement_laws(const RedistributeRequest& request, const Trial& trial);

// Of all ranks together.
std::int64_t elements_of_all(const Layout& layout);

// What has run, and how.
struct RanAttention {
  const std::vector<Plan>&forward, &backward;  // backward: empty without that pass
  const AttentionRunOptions& options;
  const AttentionRun& run;  // with its results
};
void check_attention_laws(const AttentionRequest& request, const AttentionTestData& data,
                          const RanAttention& ran, const Trial& trial);

}  // namespace cp::sim

// Laws that hold between a case and another one made from it, or between two ways to say the same.
#pragma once

#include <vector>

#include "shared/context_parallel/attention_plan.h"
#include "shared/redistribute/gradient.h"
#include "shared/transformer/step_plan.h"
#include "sim/cost/schedule/pipeline.h"
#include "sim/fuzz/judge.h"
#include "sim/proof/run/attention_run.h"
#include "sim/scenario/redistribute_request.h"

namespace cp::sim {

// Those of the case's laws that it asks for. `planned`: what the request gave. Laws whose search or data
// would take too long for a case of this size say nothing of it.
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

// Of steps; the layout is not refused. `cluster`: a preset's name, or empty for dgx-h100.
// The layout, and it with any one field at another value, come back from their texts.
void check_layout_texts(const StepRequest& request, const Trial& trial);
// With one field at each of some values, and all others as they are. Text needs no legality, and they have
// none.
std::vector<ParallelLayout> neighbours(const ParallelLayout& layout);
// Allowed pairs in closed form are those that are found one by one: of pieces of the rows, and of what each
// rank has.
void check_pairs(const StepRequest& request, const Trial& trial);
// The gathered layers of the memory in closed form are what the plan of a training step without stages has
// buffers for.
void check_unsharded(const StepRequest& request, const Plan& micro_batch, const Trial& trial);
// Causal, without documents.
std::int64_t pairs_one_by_one(const AttentionProblem& problem, const IndexSet& rows, bool by_key);
// In training with stages: each pass once, after what it needs, and none while another one runs on its rank.
void check_pipeline(const StepRequest& request, const std::string& cluster, const Trial& trial);
void check_pipeline_times(const PipelineTimes& times, int ranks, int stages, std::int64_t micro_batches,
                          const Trial& trial);
// No step is faster than its bound where multiplying takes nearly all of the time, so that nothing hides
// operations that are counted too often. Of layouts whose ranks have as many rows; no other is judged.
void check_slow_machine(const StepRequest& request, const std::string& cluster, const Trial& trial);
struct SlowTimes {
  double step_ns = 0, bound_ns = 0;
};
SlowTimes slow_times(const StepRequest& request, const std::string& cluster);

}  // namespace cp::sim

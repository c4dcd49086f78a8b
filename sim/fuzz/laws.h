// Laws that hold between a case and another one made from it, or between two ways to say the same thing.
//
// Every check_...() throws PropertyFailure if its law does not hold.
#pragma once

#include <vector>

#include "shared/context_parallel/attention_plan.h"
#include "shared/redistribute/gradient.h"
#include "shared/transformer/memory.h"
#include "shared/transformer/pipeline.h"
#include "shared/transformer/step_plan.h"
#include "sim/fuzz/judge.h"
#include "sim/proof/run/attention_run.h"
#include "sim/scenario/redistribute_request.h"

namespace cp::sim {

// Checks those laws of the redistribution that the case asks for. `planned` is what the planner gave for the
// request. A law whose search or data would take too long for a case of this size is left out.
void check_redistribution_laws(const RedistributeRequest& request, const Gradient& planned,
                               const Trial& trial);

// Checks the laws of its index sets and meshes, which need no plan.
void check_placement_laws(const RedistributeRequest& request, const Trial& trial);

// The number of elements that all ranks of the layout hold together.
std::int64_t elements_of_all(const Layout& layout);

// An attention case that has run, and how.
struct RanAttention {
  const std::vector<Plan>&forward, &backward;  // backward is empty if there is no such pass
  const AttentionRunOptions& options;
  const AttentionRun& run;  // it has its results
};
void check_attention_laws(const AttentionRequest& request, const AttentionTestData& data,
                          const RanAttention& ran, const Trial& trial);

// The laws of steps of models. The layout must be one that is not refused. `cluster` is the name of a preset,
// or empty for dgx-h100.

// Checks that the layout comes back from its texts, and so does each of its neighbours().
void check_layout_texts(const StepRequest& request, const Trial& trial);
// The layouts that differ from this one in one field, which takes each of some values. They need not be
// legal, since a text needs no legality.
std::vector<ParallelLayout> neighbours(const ParallelLayout& layout);
// Checks that the number of allowed pairs in closed form is the number found one by one: of pieces of the
// rows, and of what each rank has.
void check_pairs(const StepRequest& request, const Trial& trial);
// Checks that what is said of the memory of a training step without stages is what plans of its parts, of one
// rank, declare: each buffer of the caller's once, and the larger arena.
void check_declared(const Memory& memory, const std::vector<Plan>& parts, const Trial& trial);
// Counts the allowed pairs of the rows by trying each with every other row; by key, the rows are keys, else
// queries. Only for causal problems without documents.
std::int64_t pairs_one_by_one(const AttentionProblem& problem, const IndexSet& rows, bool by_key);
// Checks, for training with pipeline stages, that each pass runs once, after what it needs, and that no two
// passes run on a rank at the same time.
void check_pipeline(const StepRequest& request, const std::string& cluster, const Trial& trial);
void check_pipeline_times(const PipelineTimes& times, int ranks, int stages, std::int64_t micro_batches,
                          const Trial& trial);
// Checks that no step is faster than its bound on a machine where multiplying takes nearly all of the time,
// so that nothing hides operations that are counted too often. Only layouts whose ranks all have as many rows
// are judged; others pass.
void check_slow_machine(const StepRequest& request, const std::string& cluster, const Trial& trial);
// The time of the step on that machine, and its bound.
struct SlowTimes {
  double step_ns = 0, bound_ns = 0;
};
SlowTimes slow_times(const StepRequest& request, const std::string& cluster);

}  // namespace cp::sim

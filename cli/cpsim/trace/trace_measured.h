// Turns measured traces into the form of replayed plans, so that the writers of predicted traces can draw
// them.
#pragma once

#include <string>
#include <vector>

#include "shared/plan/plan.h"
#include "shared/plan/trace.h"
#include "sim/cost/cluster/cluster.h"
#include "sim/cost/timeline/timeline.h"
#include "sim/present/traces/trace_slices.h"

namespace cp::cli {

// One plan for each rank, in ascending order of ranks, and when each step ran. The steps are the operations
// that have times. The plans have only what trace files show (operations, groups, types, bytes), so they
// cannot be executed.
struct MeasuredRun {
  std::vector<Plan> plans;
  // In ns; 0 is the begin of the first operation of all ranks, by the ranks' own clocks.
  sim::Timeline timeline;
  // A node has as many GPUs as there are ranks on the first rank's host.
  sim::Cluster cluster;
  std::string backend;             // empty: unknown
  std::vector<std::string> hosts;  // one for each rank; empty: unknown

  sim::TraceSlices slices() const;  // refers to this object, which must outlive the result
};

// Draws the issued operations, kernels among them, or the observed ones if no rank has times of issued ones.
// `name` stands at the begin of messages. Throws InvalidInput if the trace has no times, and BadTrace if
// times, groups or bytes do not fit together, or an operation is unknown.
MeasuredRun measured_run(std::vector<RankTrace> ranks, const std::string& name);

}  // namespace cp::cli

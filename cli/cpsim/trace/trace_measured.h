// Measured traces in the form of replayed plans, so that they are drawn by the writers of predicted ones.
#pragma once

#include <string>
#include <vector>

#include "shared/plan/plan.h"
#include "shared/plan/trace.h"
#include "sim/cost/cluster/cluster.h"
#include "sim/cost/timeline/timeline.h"
#include "sim/present/traces/trace_slices.h"

namespace cp::cli {

// One plan for each rank, by ascending rank, whose steps are the operations that have times, and when each
// ran. The plans say what the trace files show (operations, groups, types, bytes); they cannot be executed.
struct MeasuredRun {
  std::vector<Plan> plans;
  sim::Timeline timeline;          // begins with the first operation of all, by the ranks' clocks
  sim::Cluster cluster;            // as many GPUs in a node as ranks share the first one's host
  std::string backend;             // empty: unknown
  std::vector<std::string> hosts;  // of each rank; empty: unknown

  sim::TraceSlices slices() const;  // views this
};

// Of the issued operations, or of the observed ones where no rank has times of those. Throws InvalidInput for
// a trace without times, which begins with `name`; BadTrace where times, groups or bytes do not fit together,
// or an operation is unknown.
MeasuredRun measured_run(std::vector<RankTrace> ranks, const std::string& name);

}  // namespace cp::cli

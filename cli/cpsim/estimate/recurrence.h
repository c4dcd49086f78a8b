// cpsim estimate --recurrence: what the strategies of a recurrent layer cost on a cluster.
#pragma once

#include "sim/cost/cluster/cluster.h"
#include "sim/cost/cluster/software.h"
#include "sim/cost/timeline/collective_cost.h"
#include "sim/scenario/recurrence_request.h"

namespace cp::cli {

struct RecurrenceEstimate {
  sim::Cluster cluster;
  sim::SoftwareProfile software;
  sim::CollectiveSettings collectives;
  bool forward = true, backward = false;  // which passes; at least one
  bool json = false;
};

// Prints a line for each strategy, fastest first, and what was refused. Returns the exit code.
int estimate_recurrence(const sim::RecurrenceJob& job, const RecurrenceEstimate& estimate);

}  // namespace cp::cli

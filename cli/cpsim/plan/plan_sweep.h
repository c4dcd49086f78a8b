// cpsim plan --sweep KEY=VALUES: the best layout for each value of one flag.
#pragma once

#include <string>

#include "cli/cpsim/plan/plan_what_if.h"
#include "traces/scenario.pb.h"

namespace cp::cli {

// Prints the rows and gives the exit code; after Ctrl-C those that are done. `sweep`: "nodes=1,2,4",
// "seq-len=32K..1M", "cluster=dgx-h100,hgx-h200"; a value takes the place of what the job says. Throws
// InvalidInput for what cannot be swept, and where no value makes a question; Infeasible where nothing fits
// for any.
int answer_sweep(const std::string& sweep, const proto::PlanLayouts& job, int threads,
                 const WhatIfOutput& output);

}  // namespace cp::cli

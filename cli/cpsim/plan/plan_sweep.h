// cpsim plan --sweep KEY=VALUES finds the best layout for each value of one flag.
#pragma once

#include <string>

#include "cli/cpsim/plan/plan_what_if.h"
#include "traces/scenario.pb.h"

namespace cp::cli {

// Prints one row for each value and returns the exit code. After Ctrl-C it prints the rows that are done.
// `sweep` is, for example, "nodes=1,2,4", "seq-len=32K..1M" or "cluster=dgx-h100,hgx-h200". Each value
// replaces what the job says. Throws InvalidInput if the key cannot be swept or no value makes a question,
// and Infeasible if nothing fits for any value.
int answer_sweep(const std::string& sweep, const proto::PlanLayouts& job, int threads,
                 const WhatIfOutput& output);

}  // namespace cp::cli

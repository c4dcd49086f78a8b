// cpsim run --recurrence: a recurrent layer instead of attention.
#pragma once

#include <string>

#include "traces/scenario.pb.h"

namespace cp::cli {

struct RecurrenceOutput {
  std::string trace, save_scenario;  // files; empty: none
  bool json = false;
};

// Runs the job by each of its strategies, prints the report, and returns the exit code. Throws InvalidInput
// for a job that cannot run.
int run_recurrence(const proto::Recurrence& scenario, const RecurrenceOutput& output);

}  // namespace cp::cli

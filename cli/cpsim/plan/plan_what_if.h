// The questions around a plan: along lengths, how long, how few GPUs, how sure, what to measure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "traces/scenario.pb.h"

namespace cp::cli {

struct WhatIf {
  std::string sweep;     // "seq-len=32K..1M", "nodes=1,2,4"
  std::string maximize;  // "seq-len"
  std::string minimize;  // "gpus"
  // With minimize, none or one of them: what a step may take, and how many tokens a second all GPUs together
  // compute at least.
  std::optional<double> step_time_max_ms, tokens_per_s_min;
  bool sensitivity = false, next_experiment = false;

  // The flags that are given, as they are typed: none, or one where check() is content.
  std::vector<std::string> asked() const;
};

// How it is answered.
struct WhatIfOutput {
  bool json = false, brief = false;
  std::string csv;  // a path, "-", or nothing
};

// Throws InvalidInput unless at most one is asked, of something that there is, with limits and an output that
// it has, and none of `others`, flags of the plan itself, comes with it.
void check(const WhatIf& what_if, const WhatIfOutput& output, const std::vector<std::string>& others);

// Answers the one that is asked: prints it and gives the exit code. Throws InvalidInput, and Infeasible where
// nothing fits.
int answer_what_if(const WhatIf& what_if, const proto::PlanLayouts& job, int threads,
                   const WhatIfOutput& output);

}  // namespace cp::cli

// The questions around a plan: along lengths, how long, how few GPUs, how sure, what to measure.
#pragma once

#include <string>
#include <vector>

#include "traces/scenario.pb.h"

namespace cp::cli {

struct WhatIf {
  std::string sweep;     // "seq_len=32K..1M"
  std::string maximize;  // "seq_len"
  std::string minimize;  // "gpus"
  bool sensitivity = false, next_experiment = false;

  // The flags that are given, as they are typed: none, or one where check() is content.
  std::vector<std::string> asked() const;
};

// Throws InvalidInput unless at most one is asked, of something that there is, and none of `others`, flags of
// the plan itself, comes with it.
void check(const WhatIf& what_if, const std::vector<std::string>& others);

// Answers the one that is asked: prints it and gives the exit code. Throws InvalidInput, and Infeasible where
// nothing fits.
int answer_what_if(const WhatIf& what_if, const proto::PlanLayouts& job, int threads, bool json);

}  // namespace cp::cli

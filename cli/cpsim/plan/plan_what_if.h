// The questions around a plan: how it changes along lengths or nodes, how long a sequence can be, how few
// GPUs suffice, how sure the answer is, and what to measure next.
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
  // Only with minimize, and at most one of them: what a step may take, in ms, and how many tokens a second
  // all GPUs together must compute at least.
  std::optional<double> step_time_max_ms, tokens_per_s_min;
  bool sensitivity = false, next_experiment = false;

  // The flags that are given, as they are typed. After check() there is none or one.
  std::vector<std::string> asked() const;
};

// The form of the answer.
struct WhatIfOutput {
  bool json = false, brief = false;
  std::string csv;  // a path, "-" for standard output, or empty
};

// Throws InvalidInput unless at most one question is asked, about something that exists, and its limits and
// output are among those that it has. `others` are the flags of the plan itself that were given; none of them
// may come with a question.
void check(const WhatIf& what_if, const WhatIfOutput& output, const std::vector<std::string>& others);

// Answers the question that is asked: prints the answer and returns the exit code. Throws InvalidInput, and
// Infeasible if nothing fits.
int answer_what_if(const WhatIf& what_if, const proto::PlanLayouts& job, int threads,
                   const WhatIfOutput& output);

}  // namespace cp::cli

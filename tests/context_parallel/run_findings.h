// What tests of whole runs of attention share.
#pragma once

#include <string>
#include <vector>

#include "shared/base/text.h"
#include "sim/proof/run/attention_run.h"
#include "tests/support/ranks.h"

namespace cp::testing {

// What is wrong with a run; empty when it holds.
inline std::string findings(const sim::AttentionRun& run) {
  std::string text;
  for (const sim::Verdict& verdict : run.verdicts) {
    if (!verdict.holds) text += str(verdict.name, ": ", verdict.finding, "\n");
  }
  for (const sim::TensorError& error : run.errors) text += error.finding;
  return text;
}

// The same of both passes on `cp` ranks.
inline std::string findings_of(const AttentionProblem& problem, int cp, const Strategy& strategy,
                               const Target& target = host_target()) {
  const sim::AttentionTestData data(problem, 1);
  sim::AttentionRunOptions options;
  options.backward = true, options.target = target;
  return findings(sim::run_attention(data, {problem, first_ranks(cp), strategy, true, {}}, options));
}

}  // namespace cp::testing

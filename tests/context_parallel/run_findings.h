// What tests of whole runs of attention share.
#pragma once

#include <numeric>
#include <string>
#include <vector>

#include "shared/base/text.h"
#include "sim/proof/run/attention_run.h"

namespace cp::testing {

// Ranks 0 .. cp-1.
inline std::vector<Rank> first_ranks(int cp) {
  std::vector<Rank> ranks(static_cast<std::size_t>(cp));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// What is wrong with a run; empty when it holds.
inline std::string findings(const sim::AttentionRun& run) {
  std::string text;
  for (const sim::Verdict& verdict : run.verdicts) {
    if (!verdict.holds) text += str(verdict.name, ": ", verdict.finding, "\n");
  }
  for (const sim::TensorError& error : run.errors) text += error.finding;
  return text;
}

}  // namespace cp::testing

// Reports runs of attention on the fabric, for people and for machines.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "shared/context_parallel/strategy.h"
#include "sim/proof/run/attention_run.h"
#include "sim/scenario/attention_request.h"

namespace cp::sim {

// What became of one strategy that was asked for.
struct StrategyOutcome {
  Strategy asked;
  std::optional<Refusal> refusal;  // if this is given, the alternative ran
  std::optional<sim::AttentionRun> run;
  // The error of planning, of the checker or of the fabric. If there is one, there is no run.
  std::string error;
  bool exact() const { return run && run->holds(); }
};

// The problem, a table with a line for each strategy, and what was found wrong.
std::string report_text(const sim::AttentionJob& job, const std::vector<StrategyOutcome>& outcomes);
nlohmann::ordered_json report_json(const sim::AttentionJob& job,
                                   const std::vector<StrategyOutcome>& outcomes);

}  // namespace cp::sim

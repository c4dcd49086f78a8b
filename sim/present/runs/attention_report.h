// Runs of attention on the fabric, as people and machines read them.
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
  std::optional<Refusal> refusal;  // then its alternative ran
  std::optional<sim::AttentionRun> run;
  std::string error;  // of planning, the checker or the fabric; then there is no run
  bool exact() const { return run && run->holds(); }
};

// The problem, a table with a line for each strategy, and what was found wrong.
std::string report_text(const sim::AttentionJob& job, const std::vector<StrategyOutcome>& outcomes);
nlohmann::ordered_json report_json(const sim::AttentionJob& job,
                                   const std::vector<StrategyOutcome>& outcomes);

}  // namespace cp::sim

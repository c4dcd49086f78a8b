// Reports runs of recurrences on the fabric, for people and for machines.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "sim/proof/run/recurrence_run.h"
#include "sim/scenario/recurrence_request.h"

namespace cp::sim {

// What became of one strategy that was asked for.
struct RecurrenceOutcome {
  RecurrenceStrategy asked;
  std::optional<RecurrenceRefusal> refusal;  // if this is given, the alternative ran
  std::optional<RecurrenceRun> run;
  // The error of planning, of the checker or of the fabric. If there is one, there is no run.
  std::string error;
  bool exact() const { return run && run->holds(); }
};

// The problem, a table with a line for each strategy, and what was found wrong.
std::string report_text(const RecurrenceJob& job, const std::vector<RecurrenceOutcome>& outcomes);
nlohmann::ordered_json report_json(const RecurrenceJob& job, const std::vector<RecurrenceOutcome>& outcomes);

}  // namespace cp::sim

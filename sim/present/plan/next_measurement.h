// What is worth measuring before a layout is chosen, as a person is told it: what to type, and what its
// answer settles.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/planner/search/answer.h"

namespace cp::sim {

// One thing that nobody knows well enough, and what a step is expected to take less once it is known and the
// layout is chosen by it.
struct NextMeasurement {
  std::optional<Rate> rate;  // none: attention of one layer, timed by each strategy that is worth trying
  double saves_us = 0;
};

// By what they save, the most first; without those that save less than a thousandth of the step.
std::vector<NextMeasurement> next_measurements(const PlanAnswer& answer);

// "attention of one layer by each strategy", "network".
std::string name(const NextMeasurement& measurement);

// What is typed, a command each: on GPUs of the cluster, but for `cpsim`, which runs anywhere. The question's
// own command is the answer's next_command where that is set.
std::vector<std::string> commands(const PlanAnswer& answer, const NextMeasurement& measurement);

// The first of them, with its commands and what its answer settles, and what the others save; empty where
// there is none. `then`: the command that plans with what was measured.
std::string next_measurement_text(const PlanAnswer& answer, const std::string& then);

}  // namespace cp::sim

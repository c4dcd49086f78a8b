// What is worth measuring before a layout is chosen, in words for a person: what to type, and what its answer
// settles.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/planner/search/answer.h"

namespace cp::sim {

// One thing that nobody knows well enough; and by how much a step is expected to become shorter, in us, if it
// is known when the layout is chosen.
struct NextMeasurement {
  // Absent: the attention of one layer, timed with each strategy that is worth trying.
  std::optional<Rate> rate;
  double saves_us = 0;
};

// All measurements that save a thousandth of the step or more, those that save most first. Empty if the
// answer has no best layout.
std::vector<NextMeasurement> next_measurements(const PlanAnswer& answer);

// "attention of one layer by each strategy", "network".
std::string name(const NextMeasurement& measurement);

// The commands to type. All but `cpsim` run on GPUs of the cluster; `cpsim` runs anywhere. The question's own
// command is the answer's next_command, if that is set.
std::vector<std::string> commands(const PlanAnswer& answer, const NextMeasurement& measurement);

// The first measurement, with its commands and what its answer settles, and what the others save. Empty if
// there is none. `then` is the command that plans with what was measured.
std::string next_measurement_text(const PlanAnswer& answer, const std::string& then);

}  // namespace cp::sim

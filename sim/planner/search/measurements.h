// Which rate to measure, with what, and what to do with the answer.
#pragma once

#include <string>
#include <vector>

#include "sim/planner/search/question.h"
#include "sim/planner/search/sensitivity.h"

namespace cp::sim {

// What measures a rate, as it is typed on the machines themselves.
struct MeasurementCommand {
  std::string profile;  // cprun profile: writes a cluster that cpsim plans with
  std::string other;    // what is typed on a second machine; else empty
  std::string quick;    // an nccl-tests line for a first look at the links; else empty
};
// Links and their latencies are measured between GPUs, all else on one.
MeasurementCommand measurement_command(const PlanQuestion& question, Rate rate);

// From where on a rate calls for another layout than the best.
struct TurningPoint {
  double factor = 1;      // of the rate: 0.96 is 4 % slower than assumed
  int layout = 0;         // index into Sensitivity::layouts
  double gain_share = 0;  // of the best layout's time that it saves with the rate a tenth off
};
struct RateMeasurement {
  std::string rate;
  double regret_us = 0;  // what staying costs on average, with the rate a tenth slower and faster
  double settles = 0;    // share of the regret of all rates, in [0, 1]
  std::vector<TurningPoint> turns;
  MeasurementCommand command;
};
// The rates that could change the choice, the one that costs most if it is not known first. Empty where none
// could.
std::vector<RateMeasurement> measurements(const PlanQuestion& question, const Sensitivity& sensitivity);

}  // namespace cp::sim

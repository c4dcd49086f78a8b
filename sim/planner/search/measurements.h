// measurements(): which rate of the cluster to measure first, with which command, and which layout each
// result calls for.
#pragma once

#include <string>
#include <vector>

#include "sim/planner/search/question.h"
#include "sim/planner/search/sensitivity.h"

namespace cp::sim {

// What measures a rate, as it is typed on the machines themselves.
struct MeasurementCommand {
  std::string profile;  // a cprun profile command; it writes a cluster file that cpsim plans with
  std::string other;    // what to type on a second machine; empty if one is enough
  std::string quick;    // an nccl-tests command for a first look at the links; empty if there is none
};
// Links and their latencies are measured between GPUs, all else on one.
MeasurementCommand measurement_command(const PlanQuestion& question, Rate rate);

// The value of a rate from which on another layout is better than the best one of the answer.
struct TurningPoint {
  double factor = 1;      // of the rate: 0.96 is 4 % slower than assumed
  int layout = 0;         // index into Sensitivity::layouts
  double gain_share = 0;  // share of the best layout's time that it saves if the rate is a tenth off
};
struct RateMeasurement {
  std::string rate;
  // The average loss from keeping the best layout, over the two cases that the rate is a tenth slower and a
  // tenth faster.
  double regret_us = 0;
  double settles = 0;  // share of the regret of all rates, in [0, 1]
  std::vector<TurningPoint> turns;
  MeasurementCommand command;
};
// Returns the rates that could change the choice; the first is the one whose ignorance costs most. Empty if
// no rate could change it.
std::vector<RateMeasurement> measurements(const PlanQuestion& question, const Sensitivity& sensitivity);

}  // namespace cp::sim

// Makes a problem and strategies from the texts of flags and scenarios: what `cpsim run --recurrence` is
// asked to do.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shared/recurrence/recurrence_plan.h"
#include "sim/fabric/fabric.h"
#include "traces/scenario.pb.h"

namespace cp::sim {

struct RecurrenceJob {
  RecurrenceProblem problem;
  std::vector<Rank> ranks;  // the cp ranks
  std::string where;        // "cp=8", or which part of a larger mesh is run
  std::vector<RecurrenceStrategy> strategies;
  bool backward = false;
  Schedule schedule = Schedule::parallel;
  std::uint64_t seed = 0;
  Target target = host_target();
};

// Reads the job. `device` is the target if the job names none. Throws InvalidInput that names the flag at
// fault, quotes its text and says what would work. It does not check whether the strategies are legal.
RecurrenceJob make_recurrence_job(const proto::Recurrence& job, const Target& device = host_target());

// Flags of `cpsim run` fill in the fields of an attention. flags_of() returns those of a recurrence that they
// have fields for, so that flags can change them; recurrence_of() puts them back into the job, and throws
// InvalidInput that names a flag that only attention has.
proto::Attention flags_of(const proto::Recurrence& job);
proto::Recurrence recurrence_of(const proto::Attention& flags, proto::Recurrence job);

}  // namespace cp::sim

// One rank's part of a scenario, for any device: its plans, its data, and whether its results are right. And
// the whole scenario on the simulated fabric, to compare with.
//
// A program that runs scenarios itself makes the job here. It runs the job with run_on_host_buffers()
// (shared/plan/session.h) or, as cprun does, with RankRun (runtime/rank_run.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "shared/plan/rank_passes.h"
#include "shared/plan/target.h"
#include "shared/plan/trace.h"
#include "traces/scenario.pb.h"

namespace cp::sim {

// The passes of a scenario: the forward and backward pass of an attention or a recurrence, or one
// redistribution. The inputs follow from the scenario's seed.
class RankJob : public RankPasses {
 public:
  // Returns what is wrong with this rank's results, in words, or nothing. Call it after all passes. It
  // computes the results of one device, which takes time and memory.
  virtual std::vector<std::string> findings() const = 0;
};

// Returns the number n of ranks that the scenario needs, which are 0 .. n-1. Throws InvalidInput as the
// functions that read its fields do, and if the scenario is not for ranks or has several strategies.
int world_size_of(const proto::Scenario& scenario);

// The bytes of the host's memory that one rank takes: its inputs; what its plans declare (which on a GPU is
// the GPU's memory); and, if its results are checked, the results of one device. rank_memory() allocates
// nothing. It throws as world_size_of() does.
struct RankMemory {
  std::int64_t inputs = 0, plans = 0, results = 0;
};
RankMemory rank_memory(const proto::Scenario& scenario, Rank rank);

// The field of a scenario for ranks that names the target of its plans; empty if it names none.
std::string& target_field(proto::Scenario& scenario);

// Makes the job of one rank. `device` is the target of the rank's device, and must be equal on all ranks.
// Plans are made for it if the scenario names no target. Throws InvalidInput as world_size_of() does.
std::unique_ptr<RankJob> make_rank_job(const proto::Scenario& scenario, Rank rank,
                                       const Target& device = host_target());

// Runs the same plans on the simulated fabric, checks everything, and returns the traces of all ranks. Throws
// CheckFailure, and what running a plan throws.
std::vector<RankTrace> simulate(const proto::Scenario& scenario, const Target& device = host_target());

}  // namespace cp::sim

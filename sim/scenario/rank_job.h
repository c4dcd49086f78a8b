// One rank's part of a scenario, whatever device it has: its plans, its data, and whether its results are
// right. And the whole scenario on the simulated fabric, to compare with. A program that runs scenarios of
// its own makes the job here, and runs it with run_on_host_buffers() (shared/plan/session.h) or, as cprun
// does, with RankRun (runtime/rank_run.h).
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

// The passes of a scenario: an attention's forward and backward, or one redistribution, with inputs from the
// scenario's seed.
class RankJob : public RankPasses {
 public:
  // After all passes: what is wrong with this rank's results, in words; empty when nothing is. Makes the
  // results of one device, which takes time and memory.
  virtual std::vector<std::string> findings() const = 0;
};

// Ranks 0 .. n-1 that the scenario needs. Throws InvalidInput as the functions that read its fields do, and
// for a scenario that is not for ranks, or of several strategies.
int world_size_of(const proto::Scenario& scenario);

// Bytes of the host's memory that one rank takes: its inputs, what its plans declare (which on GPUs is the
// GPU's), and, where its results are checked, those of one device. Nothing is allocated. Throws as
// world_size_of().
struct RankMemory {
  std::int64_t inputs = 0, plans = 0, results = 0;
};
RankMemory rank_memory(const proto::Scenario& scenario, Rank rank);

// `device`: the target of the rank's device, for which plans are made where the scenario names none; equal on
// all ranks.
std::unique_ptr<RankJob> make_rank_job(const proto::Scenario& scenario, Rank rank,
                                       const Target& device = host_target());

// The traces of all ranks on the simulated fabric, of the same plans, everything checked: throws CheckFailure
// and what runs throw.
std::vector<RankTrace> simulate(const proto::Scenario& scenario, const Target& device = host_target());

}  // namespace cp::sim

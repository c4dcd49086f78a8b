// Running a redistribution on the simulated fabric, with data, and checking all that there is to check:
//
//   plans    check() over all ranks' plans, with the peak memory that the redistribution declared as the
//            limit
//   traffic  issued and observed traces agree, and the bytes on the wire are those that the planner counted
//   data     every element of every rank's output is what the index sets say, in value and place; of a
//            gradient that is scaled, what they say times the factor
//
// Each rank makes its own shard and compares its own output, on its own thread, from the elements' numbers
// alone (TestValues): no rank ever holds the whole tensor.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "shared/base/error.h"
#include "shared/plan/plan.h"
#include "shared/plan/trace.h"
#include "shared/redistribute/redistribution.h"
#include "sim/fabric/fabric.h"

namespace cp::sim {

using LedgerFailure = ErrorOf<ErrorKind::ledger>;  // bytes that moved are not the bytes that had to move

struct RedistributeRunOptions {
  Schedule schedule = Schedule::parallel;
  std::uint64_t seed = 0;                          // of the data, and of the baton
  BatonOrder order = {};                           // of the baton
  std::optional<std::int64_t> memory_limit_bytes;  // refuse what needs more
  Target target = host_target();
  // What goes wrong in the machine (sim/fabric/faults.h), and what looks for it: a transfer that is not what
  // was sent is a CheckFailure that names it, whether payloads are digested or lengths alone are compared.
  std::vector<InjectedFault> faults = {};
  Checksums checksums = Checksums::off;
  // Plans that a rank's program got wrong (sim/proof/faults/program_faults.h) run without check(), which
  // needs all ranks' plans at once and would refuse them; the ranks may compare the digests of their plans
  // first, as real ones do (require_equal_plans).
  bool check_plans = true;
  bool compare_digests = false;
  // Set before each run: which faults have taken place so far.
  std::vector<bool>* injected = nullptr;
  // What results are multiplied with, as Gradient::scale says: plans have that Scale, and data is held
  // against it.
  double scale = 1;
  bool digests = false;  // fill the traces' digests of outputs that are exact in every world
  // Called by the caller's thread when a phase begins: "checking the plans", "running", ...
  std::function<void(std::string_view)> on_phase;
};

struct RedistributeRun {
  int num_ranks = 0;
  std::int64_t elements_compared = 0;
  std::int64_t bytes_compared = 0;
  std::int64_t memory_bytes = 0;  // source, target and arena of all ranks together
  std::int64_t peak_bytes = 0;    // of the rank that needs most; at most the redistribution's, and padding
  std::int64_t wire_bytes = 0;    // received, all ranks together
  double check_s = 0, run_s = 0, compare_s = 0;
  double fill_s = 0;              // in run_s where nobody is told of the phases
  std::vector<RankTrace> traces;  // of the ranks of both meshes, ascending
};

// What a run takes, all ranks together: an upper bound, before any plan is written.
std::int64_t run_memory_bytes(const Redistribution& redistribution);

// Throws InvalidInput when the run needs more than the limit (it names a shape that fits) or a thread for
// more than kMaxRunRanks ranks; CheckFailure when the data is wrong (it names the rank, the element, what it
// is and what it should be) or the traces disagree; LedgerFailure; and what check() and the fabric throw.
constexpr Rank kMaxRunRanks = 4096;
RedistributeRun run_redistribution(const Redistribution& redistribution,
                                   const RedistributeRunOptions& options = {});

// The same with given plans, one for each rank of both meshes in ascending order, as lower_all_scaled() gives
// them.
RedistributeRun run_redistribution(const Redistribution& redistribution, std::span<const Plan> plans,
                                   const RedistributeRunOptions& options = {});

// What a run holds plans to, for whoever runs plans in another way: the peak of any rank (the
// redistribution's, and less than one alignment of the plans' target for each temporary), and the bytes on
// the wire that all ranks receive, as the planner counts them and as the records of a trace show them.
std::int64_t peak_limit_bytes(const Redistribution& redistribution, std::span<const Plan> plans);
std::int64_t planned_wire_bytes(const Redistribution& redistribution);
std::int64_t wire_bytes(std::span<const RankTrace> traces);

}  // namespace cp::sim

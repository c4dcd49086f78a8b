// Runs a redistribution on the simulated fabric, with data, and checks all that there is to check:
//
//   plans    check() passes the plans of all ranks, with the peak memory that the redistribution declared as
//            the limit
//   traffic  issued and observed traces agree, and the bytes on the wire are those that the planner counted
//   data     every element of every rank's output is what the index sets say, in value and place; for a
//            gradient that is scaled, what they say times the factor
//
// Each rank makes its own shard and compares its own output, on its own thread, from the elements' numbers
// alone (TestValues). No rank ever holds the whole tensor.
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
  std::uint64_t seed = 0;                          // of the data, and of the order of the ranks
  BatonOrder order = {};                           // has no meaning unless `schedule` is baton
  std::optional<std::int64_t> memory_limit_bytes;  // a run that needs more is refused
  Target target = host_target();
  // What goes wrong in the machine (sim/fabric/faults.h), and what looks for it. A transfer that is not what
  // was sent is a CheckFailure that names it, whether payloads are digested or only lengths compared.
  std::vector<InjectedFault> faults = {};
  Checksums checksums = Checksums::off;
  // Whether check() looks at the plans. It needs all ranks' plans at once, and would refuse plans that a
  // rank's program got wrong (sim/proof/faults/program_faults.h). The ranks may compare the digests of their
  // plans first instead, as real ones do (require_equal_plans).
  bool check_plans = true;
  bool compare_digests = false;
  // If given, it says after the run which faults have taken place, also if the run throws.
  std::vector<bool>* injected = nullptr;
  // The factor that results are multiplied with, as Gradient::scale says. The plans have a Scale with it, and
  // data is compared with what it gives.
  double scale = 1;
  bool digests = false;  // whether traces get the digests of those outputs that are exact in every world
  // Called by the caller's thread when a phase begins: "checking the plans", "running", ...
  std::function<void(std::string_view)> on_phase;
};

struct RedistributeRun {
  int num_ranks = 0;
  std::int64_t elements_compared = 0;
  std::int64_t bytes_compared = 0;
  std::int64_t memory_bytes = 0;  // source, target and arena of all ranks together
  std::int64_t peak_bytes = 0;    // of the rank that needs most; at most the redistribution's, and padding
  std::int64_t wire_bytes = 0;    // that all ranks together received
  double check_s = 0, run_s = 0, compare_s = 0;
  double fill_s = 0;              // part of run_s if there is no on_phase
  std::vector<RankTrace> traces;  // of the ranks of both meshes, ascending
};

// The bytes that a run takes, all ranks together. It is an upper bound, known before any plan is written.
std::int64_t run_memory_bytes(const Redistribution& redistribution);

// The most ranks of a run. Chosen: each rank is a thread, and far fewer show all that redistribution does.
constexpr Rank kMaxRunRanks = 4096;
// Plans and runs the redistribution. Throws InvalidInput if the run needs more memory than the limit (the
// error names a shape that fits), or has a rank above kMaxRunRanks - 1. Throws CheckFailure if the data is
// wrong (the error names the rank, the element, what it is and what it should be) or the traces disagree;
// LedgerFailure; and what check() and the fabric throw.
RedistributeRun run_redistribution(const Redistribution& redistribution,
                                   const RedistributeRunOptions& options = {});

// The same with given plans: one for each rank of both meshes, in ascending order, as lower_all_scaled()
// gives them.
RedistributeRun run_redistribution(const Redistribution& redistribution, std::span<const Plan> plans,
                                   const RedistributeRunOptions& options = {});

// What a run holds plans to, for those who run plans in another way. The peak of any rank may be the
// redistribution's, and for each temporary less than one alignment of the plans' target more. The bytes on
// the wire are those that all ranks receive: as the planner counts them, and as the records of a trace show
// them.
std::int64_t peak_limit_bytes(const Redistribution& redistribution, std::span<const Plan> plans);
std::int64_t planned_wire_bytes(const Redistribution& redistribution);
std::int64_t wire_bytes(std::span<const RankTrace> traces);

}  // namespace cp::sim

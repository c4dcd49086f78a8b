// Runs the plans of a recurrence on the simulated fabric, with data, and checks all that there is to check:
//
//   plans    check() passes the plans of all ranks, forward and backward
//   states   what comes in to each chunk is the state of all rows before it, each once, and each row is
//            computed once (recurrence_ledger.h)
//   bytes    every rank received just what the places of the rows say
//   traces   issued and observed traces agree
//   data     out and all gradients equal those of one device in float64, within tolerances derived from the
//            dtypes and the lengths of the sums (recurrence_tolerance.h)
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shared/recurrence/recurrence_plan.h"
#include "sim/fabric/fabric.h"
#include "sim/proof/ledger/recurrence_ledger.h"
#include "sim/proof/run/pass_traces.h"
#include "sim/proof/run/recurrence_shards.h"

namespace cp::sim {

// As in AttentionRunOptions (attention_run.h).
struct RecurrenceRunOptions {
  bool backward = false;
  bool keep_results = false;  // whether RecurrenceRun::results is filled in
  Target target = host_target();
  Schedule schedule = Schedule::parallel;
  std::uint64_t seed = 0;
  BatonOrder order = {};
  std::optional<std::int64_t> memory_limit_bytes;
  std::vector<InjectedFault> faults = {};
  std::function<void(std::string_view)> on_phase;
};

struct RecurrencePassResult {
  int steps = 0;                  // of the rank that has most
  int hops = 0;                   // collectives of the rank that has most
  StateBytes received, expected;  // of all ranks together; expected: without padding
  std::int64_t received_max = 0;  // by the rank that receives most
  std::int64_t peak_bytes = 0;    // arena and bindings of the rank that needs most
};

struct RecurrenceRun {
  RecurrencePassResult forward, backward;
  std::vector<Verdict> verdicts;
  std::vector<TensorError> errors;
  double seconds = 0;                                  // all of it, but for the reference
  std::map<std::string, std::vector<double>> results;  // if asked for: global tensors by name
  std::vector<RankTrace> traces;  // of both passes, one after the other, by ascending rank
  bool holds() const;             // whether all verdicts and errors hold
};

// Plans and runs the request. Throws what planning (InvalidInput), check() and the fabric throw, and
// InvalidInput if the ranks together need more memory than the limit. Wrong data and broken ledgers are not
// thrown but stand in the result.
RecurrenceRun run_recurrence(const RecurrenceTestData& data, const RecurrenceRequest& request,
                             const RecurrenceRunOptions& options = {});

// The same with given plans, for tests that plant a defect. The plans are by ascending rank; if `backward` is
// empty, there is only a forward pass.
RecurrenceRun run_recurrence(const RecurrenceTestData& data, const RecurrenceRequest& request,
                             const std::vector<Plan>& forward, const std::vector<Plan>& backward,
                             const RecurrenceRunOptions& options = {});

}  // namespace cp::sim

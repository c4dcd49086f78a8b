// Runs attention plans on the simulated fabric, with data, and checks all that there is to check:
//
//   plans    check() passes the plans of all ranks, forward and backward, with the declared peak memory as
//            the limit
//   traffic  issued and observed traces agree, and every rank received of each tensor just the bytes that the
//            index sets say must move to it (AttentionLedger)
//   cells    each allowed (query, key) pair was computed exactly once, and no forbidden one, in the forward
//            and in the backward pass; every output row is made of all its cells and lies at its home
//            (AttentionLedger)
//   data     out, lse, dq, dk and dv equal those of one device in float64, within tolerances derived from the
//            dtypes and the lengths of the sums (attention_tolerance.h)
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/error.h"
#include "shared/context_parallel/attention_plan.h"
#include "shared/plan/trace.h"
#include "sim/fabric/fabric.h"
#include "sim/proof/run/attention_shards.h"
#include "sim/proof/run/attention_test_data.h"
#include "sim/proof/run/pass_traces.h"

namespace cp::sim {

struct AttentionRunOptions {
  bool backward = false;
  bool keep_results = false;  // whether AttentionRun::results is filled in
  Target target = host_target();
  Schedule schedule = Schedule::parallel;
  std::uint64_t seed = 0;                          // of the baton
  BatonOrder order = {};                           // of the baton
  std::optional<std::int64_t> memory_limit_bytes;  // if all ranks together need more, the run is refused
  // These are as in RedistributeRunOptions (redistribute_run.h). A transfer that is not what was sent throws
  // CheckFailure. Without check_plans the ledgers of cells and bytes are not kept.
  std::vector<InjectedFault> faults = {};
  Checksums checksums = Checksums::off;
  bool check_plans = true;
  bool compare_digests = false;
  std::vector<bool>* injected = nullptr;
  // Called by the caller's thread when a phase begins: "checking the plans", "running", ...
  std::function<void(std::string_view)> on_phase;
};

struct AttentionPassResult {
  int steps = 0;                        // of the rank that has most
  std::int64_t bytes_received = 0;      // of all tensors, by all ranks together
  std::int64_t bytes_received_max = 0;  // by the rank that receives most
  std::int64_t expected_bytes = 0;      // what the index sets say, for all ranks together
  std::int64_t redundant_kv_bytes = 0;  // of K and V rows that a rank received and no query of it may see
  std::int64_t peak_bytes = 0;          // arena and bindings of the rank that needs most
  std::int64_t peak_bound_bytes = 0;    // what the strategy may need at most (peak_bound.h)
  std::int64_t cells = 0;               // allowed (query, key) pairs, over batches and query heads
};

struct AttentionRun {
  int num_ranks = 0;
  AttentionPassResult forward, backward;
  std::vector<Verdict> verdicts;
  std::vector<TensorError> errors;
  double plan_s = 0, check_s = 0, run_s = 0, ledger_s = 0, compare_s = 0;
  AttentionResults results;       // if asked for; the gradients are empty without a backward pass
  std::vector<RankTrace> traces;  // of both passes, one after the other, by ascending rank
  bool holds() const;             // whether all verdicts and errors hold
};

// Plans and runs the request. Throws what planning (InvalidInput), check() and the fabric throw. Wrong data
// and broken ledgers are not thrown but stand in the result, so that many strategies can be compared in one
// table.
AttentionRun run_attention(const AttentionTestData& data, const AttentionRequest& request,
                           const AttentionRunOptions& options = {});

// The same with given plans, for tests that plant a defect. The plans are by ascending rank; if `backward` is
// empty, there is only a forward pass.
AttentionRun run_attention(const AttentionTestData& data, const AttentionRequest& request,
                           const std::vector<Plan>& forward, const std::vector<Plan>& backward,
                           const AttentionRunOptions& options = {});

}  // namespace cp::sim

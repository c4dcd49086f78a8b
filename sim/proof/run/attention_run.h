// Running attention plans on the simulated fabric, with data, and checking all that there is to check:
//
//   plans    check() over all ranks' plans, forward and backward, with the declared peak memory as the limit
//   traffic  issued and observed traces agree, and every rank received of each tensor just the bytes that the
//            index sets say must move to it (AttentionLedger)
//   cells    each allowed (query, key) pair was computed exactly once, no forbidden one, in the forward and
//            in the backward pass; every output row is made of all its cells and lies at its home
//            (AttentionLedger)
//   data     out, lse, dq, dk and dv equal those of one device in float64, within tolerances derived from the
//            dtypes and the lengths of the sums
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

namespace cp::sim {

struct AttentionRunOptions {
  bool backward = false;
  bool keep_results = false;  // in AttentionRun::results
  Target target = host_target();
  Schedule schedule = Schedule::parallel;
  std::uint64_t seed = 0;                          // of the baton
  BatonOrder order = {};                           // of the baton
  std::optional<std::int64_t> memory_limit_bytes;  // refuse ranks that together need more
  // As those of RedistributeRunOptions (redistribute_run.h). A transfer that is not what was sent throws;
  // without check_plans the plans' ledgers of cells and bytes are not kept.
  std::vector<InjectedFault> faults = {};
  Checksums checksums = Checksums::off;
  bool check_plans = true;
  bool compare_digests = false;
  std::vector<bool>* injected = nullptr;
  // Called by the caller's thread when a phase begins: "checking the plans", "running", ...
  std::function<void(std::string_view)> on_phase;
};

// A verdict on one invariant: what was found, in words, when it does not hold.
struct Verdict {
  std::string name;  // "mask cells", "bytes", "peak memory", "traces"
  bool holds = true;
  std::string finding;  // empty when it holds
};

struct AttentionPassResult {
  int steps = 0;                        // of the rank that has most
  std::int64_t bytes_received = 0;      // all ranks together, of all tensors
  std::int64_t bytes_received_max = 0;  // of one rank
  std::int64_t expected_bytes = 0;      // what the index sets say, all ranks together
  std::int64_t redundant_kv_bytes = 0;  // K and V rows that a rank received and no query of it may see
  std::int64_t peak_bytes = 0;          // of the rank that needs most: arena and bindings
  std::int64_t peak_bound_bytes = 0;    // what the strategy may need at most
  std::int64_t cells = 0;               // allowed (query, key) pairs, over batches and query heads
};

struct AttentionRun {
  int num_ranks = 0;
  AttentionPassResult forward, backward;
  std::vector<Verdict> verdicts;
  std::vector<TensorError> errors;
  double plan_s = 0, check_s = 0, run_s = 0, ledger_s = 0, compare_s = 0;
  AttentionResults results;       // if asked for; gradients are empty without a backward pass
  std::vector<RankTrace> traces;  // of both passes, one after the other, by ascending rank
  bool holds() const;             // all verdicts and errors
};

// Throws what planning (InvalidInput), check() and the fabric throw; wrong data and broken ledgers are in the
// result, so that many strategies can be compared in one table.
AttentionRun run_attention(const AttentionTestData& data, const AttentionRequest& request,
                           const AttentionRunOptions& options = {});

// The same with given plans (by ascending rank; backward empty: forward alone), for tests that plant a
// defect.
AttentionRun run_attention(const AttentionTestData& data, const AttentionRequest& request,
                           const std::vector<Plan>& forward, const std::vector<Plan>& backward,
                           const AttentionRunOptions& options = {});

}  // namespace cp::sim

// What becomes of a run in which something goes wrong on purpose: it must end with the right result, or with
// an error that names whoever did it.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/error.h"
#include "shared/context_parallel/attention_plan.h"
#include "shared/plan/plan.h"
#include "shared/redistribute/redistribution.h"
#include "sim/fabric/fabric.h"
#include "sim/proof/faults/program_faults.h"
#include "sim/proof/run/attention_test_data.h"

namespace cp::sim {

struct FaultVerdict {
  enum class Kind : std::uint8_t {
    no_fault,       // the place has no such fault: nothing went wrong, and the result is right
    tolerated,      // the result is right
    reported,       // with the right culprit and kind
    silent,         // no error, and the fault is none that may pass: whatever the result is
    unnamed,        // found, by the result alone, or without saying whose fault it is
    wrong_culprit,  // another rank, another transfer, or an error of another kind
    false_alarm,    // an error, where nothing went wrong that matters
  };
  Kind kind = Kind::no_fault;
  std::optional<ErrorKind> error = {};  // what it ended with
  ErrorFacts facts = {};                // of the error
  std::string message = {};             // the error, or what the faults were to come to
  bool holds() const { return kind <= Kind::reported; }
  std::string_view error_name() const { return error ? cp::name(*error) : "no error"; }
};
std::string_view name(FaultVerdict::Kind kind);  // "wrong_culprit"

// Whether the error is one that the fault must come to:
//   of a transfer  its sender and its receiver, a check_failed
//   dead_rank      that rank, a peer_lost
//   of a program   that rank alone, a collective_mismatch or a deadlock; of two ranks that differ and nobody
//                  can tell which is wrong, both, as a tie
bool names_culprit(const InjectedFault& fault, ErrorKind error, const ErrorFacts& facts);

// Runs once. `run` throws what goes wrong, an Error, and says which of the faults took place before it
// returns or throws; of several one must be named. Of faults of programs swap_collectives alone may pass,
// with the right result: orders that no rank waits for.
FaultVerdict judge_faults(std::span<const InjectedFault> faults,
                          const std::function<void(std::vector<bool>& took_place)>& run);

struct FaultRunOptions {
  Schedule schedule = Schedule::baton;
  std::uint64_t seed = 0;
  BatonOrder order = {};
  // Without checksums a flipped bit is silent: nothing else looks at payloads.
  Checksums checksums = Checksums::end;
  // Of plans, over the control plane, before the run; without it the fabric alone is to find programs'
  // faults.
  bool compare_digests = false;
  double scale = 1;  // redistributions: RedistributeRunOptions::scale
};

// Faults of machines take place in the fabric, those of programs in the plans: the collectives of a rank
// count through the forward and on through the backward pass. `others`: right plans of another problem on the
// same ranks, for other_plan; empty: there are none.
FaultVerdict judge_redistribution(const Redistribution& redistribution, std::span<const Plan> plans,
                                  std::span<const InjectedFault> faults, const FaultRunOptions& options = {},
                                  std::span<const Plan> others = {});
FaultVerdict judge_attention(const AttentionTestData& data, const AttentionRequest& request,
                             std::span<const Plan> forward, std::span<const Plan> backward,
                             std::span<const InjectedFault> faults, const FaultRunOptions& options = {},
                             std::span<const Plan> others = {});

}  // namespace cp::sim

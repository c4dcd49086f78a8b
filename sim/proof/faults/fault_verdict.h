// Judges a run in which something goes wrong on purpose: it must end with the right result, or with an error
// that names whoever did it.
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
    tolerated,      // the fault took place, and the result is right
    reported,       // an error of the right kind names the right culprit
    silent,         // no error, although the fault is none that may pass; whatever the result is
    unnamed,        // found by the result only, or by an error that does not say whose fault it is
    wrong_culprit,  // the error names another rank or another transfer, or is of another kind
    false_alarm,    // an error, although nothing went wrong that matters
  };
  Kind kind = Kind::no_fault;
  std::optional<ErrorKind> error = {};  // the kind of the error that the run ended with
  ErrorFacts facts = {};                // the facts of this error
  std::string message = {};             // the error's words, or what the faults should have led to
  bool holds() const { return kind <= Kind::reported; }
  std::string_view error_name() const { return error ? cp::name(*error) : "no error"; }
};
std::string_view name(FaultVerdict::Kind kind);  // "wrong_culprit"

// Whether the error is the one that the fault must lead to:
//
//   of a transfer  a check_failed that names its sender and its receiver
//   dead_rank      a peer_lost that names that rank
//   of a program   a collective_mismatch or a deadlock that names that rank alone; or, if two ranks differ
//                  and nobody can tell which of them is wrong, both, as a tie
bool names_culprit(const InjectedFault& fault, ErrorKind error, const ErrorFacts& facts);

// Runs once and judges what becomes of it. `run` throws an Error if something goes wrong; before it returns
// or throws, it says which of the faults took place. If several did, the error must name one of them. Of the
// faults of programs only swap_collectives may pass with the right result, in orders for which no rank waits.
FaultVerdict judge_faults(std::span<const InjectedFault> faults,
                          const std::function<void(std::vector<bool>& took_place)>& run);

struct FaultRunOptions {
  Schedule schedule = Schedule::baton;
  std::uint64_t seed = 0;
  BatonOrder order = {};
  // Without checksums a flipped bit is silent, because nothing else looks at payloads.
  Checksums checksums = Checksums::end;
  // Whether the ranks compare the digests of their plans over the control plane before the run. Without it
  // the fabric alone must find the faults of programs.
  bool compare_digests = false;
  double scale = 1;  // of a redistribution: RedistributeRunOptions::scale
};

// Run the right plans with the faults in them. Faults of machines take place in the fabric, those of programs
// in the plans. The collectives of a rank are counted through the forward and on through the backward pass.
// `others` are right plans of another problem on the same ranks, for other_plan; empty if there are none.
FaultVerdict judge_redistribution(const Redistribution& redistribution, std::span<const Plan> plans,
                                  std::span<const InjectedFault> faults, const FaultRunOptions& options = {},
                                  std::span<const Plan> others = {});
FaultVerdict judge_attention(const AttentionTestData& data, const AttentionRequest& request,
                             std::span<const Plan> forward, std::span<const Plan> backward,
                             std::span<const InjectedFault> faults, const FaultRunOptions& options = {},
                             std::span<const Plan> others = {});

}  // namespace cp::sim

// Every fault of every place of small plans, judged.
#pragma once

#include <span>
#include <vector>

#include "shared/plan/plan.h"
#include "sim/proof/faults/fault_verdict.h"

namespace cp::testing {

// Of one kind, at all places of the plans: ranks, peers, collectives.
inline std::vector<sim::InjectedFault> faults_of(sim::FaultKind kind, std::span<const Plan> plans,
                                                 std::int64_t most_collectives, std::int64_t amount) {
  std::vector<sim::InjectedFault> faults;
  for (const Plan& plan : plans) {
    const std::int64_t collectives = std::min(sim::num_collectives(plan), most_collectives);
    for (std::int64_t collective = 0; collective < collectives; ++collective) {
      for (const Plan& peer : plans) {
        const bool has_peer = sim::is_of_transfer(kind);
        if (has_peer ? peer.self == plan.self : peer.self != plan.self) continue;
        faults.push_back({.kind = kind,
                          .rank = plan.self,
                          .peer = has_peer ? peer.self : 0,
                          .collective = collective,
                          .amount = amount});
      }
      if (kind == sim::FaultKind::slow_rank || kind == sim::FaultKind::other_plan) break;
    }
  }
  return faults;
}

}  // namespace cp::testing

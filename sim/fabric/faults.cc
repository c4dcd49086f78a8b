#include "sim/fabric/faults.h"

#include <array>

#include "shared/base/text.h"

namespace cp::sim {

std::string_view name(FaultKind kind) {
  constexpr std::array<std::string_view, kNumFaultKinds> kNames = {"none",
                                                                   "delay",
                                                                   "reorder",
                                                                   "duplicate",
                                                                   "drop",
                                                                   "corrupt",
                                                                   "truncate",
                                                                   "slow_rank",
                                                                   "dead_rank",
                                                                   "skip_collective",
                                                                   "repeat_collective",
                                                                   "swap_collectives",
                                                                   "other_reduction",
                                                                   "other_root",
                                                                   "other_dtype",
                                                                   "other_split",
                                                                   "other_group",
                                                                   "other_plan"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::string to_string(const InjectedFault& fault) {
  if (is_of_transfer(fault.kind)) {
    return str(name(fault.kind), " (amount ", fault.amount, ") of what rank ", fault.rank, " sends to rank ",
               fault.peer, " in its collective ", fault.collective);
  }
  if (fault.kind == FaultKind::slow_rank) return str(name(fault.kind), " of rank ", fault.rank);
  return str(name(fault.kind), " of rank ", fault.rank, " at its collective ", fault.collective);
}

bool is_of_transfer(FaultKind kind) { return kind >= FaultKind::delay && kind <= FaultKind::truncate; }
bool is_of_program(FaultKind kind) { return kind >= FaultKind::skip_collective; }
bool is_tolerated(FaultKind kind) {
  return kind == FaultKind::none || kind == FaultKind::delay || kind == FaultKind::reorder ||
         kind == FaultKind::slow_rank;
}

}  // namespace cp::sim

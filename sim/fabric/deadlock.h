// The report of a deadlock: which rank waits for which, found when no rank can go on.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shared/plan/dissent.h"
#include "sim/fabric/communicator.h"

namespace cp::sim {

// A collective at which a rank has arrived and others have not.
struct Wait {
  const Communicator* communicator = nullptr;
  std::int32_t index = 0;  // of the rank in the group
  std::string stream;      // name
  StepId step = -1;        // of the rank's plan
  std::int64_t iteration = 0;
  // The groups whose next collective the rank issues only after this one.
  std::vector<const Communicator*> holds_up;
};

struct RankWaits {
  Rank rank = 0;
  std::vector<Wait> waits;  // empty if the rank's body has returned
};

// "rank 0 waits in all_reduce #3 on tp[0,1] (stream comm) for rank 1"
std::string to_string(Rank rank, const Wait& wait);

struct DeadlockReport {
  std::string text;
  // Which ranks do not do what others wait for, judged by the waits alone: the end of the chain or, in a
  // cycle, the ranks that never launch what the others wait for. If every rank of the cycle would launch it
  // later, the whole cycle is named as a tie.
  Dissent dissent;
  std::vector<const Communicator*> communicators;  // in which the ranks of the cycle or the chain wait
};

// `ranks` holds all ranks of the world in order; none of them can go on. The report shows the cycle, or the
// chain that ends at a rank which has returned or never issues what others wait for, and then all other
// ranks that wait. It also says that no other order of ranks and streams could have avoided this. That is so
// because a piece of work that has become possible stays possible until it is done, whatever other ranks do:
// every order ends in the same waits.
DeadlockReport deadlock_report(std::span<const RankWaits> ranks);

}  // namespace cp::sim

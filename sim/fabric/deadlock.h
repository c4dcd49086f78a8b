// The report of a deadlock: who waits for whom.
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
  std::vector<const Communicator*>
      holds_up;  // groups whose next collective the rank issues only after this one
};

struct RankWaits {
  Rank rank = 0;
  std::vector<Wait> waits;  // none: its body has returned
};

// "rank 0 waits in all_reduce #3 on tp[0,1] (stream comm) for rank 1"
std::string to_string(Rank rank, const Wait& wait);

struct DeadlockReport {
  std::string text;
  // Who, by the waits alone, does not do what others wait for: the end of the chain; in a cycle who never
  // launches what is waited for, or else all of it, a tie.
  Dissent dissent;
  std::vector<const Communicator*> communicators;  // that ranks of the cycle, or of the chain, wait in
};

// `ranks`: all of the world, in order, none of which can go on. Shows the cycle, or the chain that ends at a
// rank which has returned or never issues what others wait for, and who else waits. What a rank can do next
// stays possible until it does it, whatever the others do, so that every order of ranks and streams comes to
// the same waits: the report says that too.
DeadlockReport deadlock_report(std::span<const RankWaits> ranks);

}  // namespace cp::sim

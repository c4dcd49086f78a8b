// Baton: the right to run, for ranks that take turns. Exactly one rank holds it at any time, and only that
// rank runs; all others are blocked in await(). Who gets it next is the Scheduler's choice (scheduler.h); how
// a rank is blocked and woken is the carrier's: a change of stacks (rank_fibers.h) or a sleeping thread
// (rank_threads.h).
#pragma once

#include "shared/base/types.h"

namespace cp::sim {

class Baton {
 public:
  virtual ~Baton() = default;

  // The host calls this before a run. Afterwards nobody holds the baton.
  virtual void reset() = 0;
  // The holder calls this, or the host for the first rank of a run. `next` starts to run once the caller
  // awaits the baton again or its body ends, not before.
  virtual void pass_to(Rank next) = 0;
  // Blocks the calling rank, which is `self`, until it holds the baton.
  virtual void await(Rank self) = 0;
};

}  // namespace cp::sim

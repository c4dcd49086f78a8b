// RankCarrier: gives each rank of a fabric a stack to run on. RankThreads makes each rank a thread of its
// own; RankFibers keeps all of them on one thread.
#pragma once

#include <functional>

#include "shared/base/types.h"
#include "sim/fabric/baton.h"

namespace cp::sim {

class RankCarrier {
 public:
  virtual ~RankCarrier() = default;

  virtual Baton& baton() = 0;
  // Calls body(rank) once for each rank and returns when all have returned. The body must not throw. If ranks
  // take turns, the host passes the baton to the first rank before it calls this, and each body begins with
  // await() and ends by passing the baton on.
  virtual void run(const std::function<void(Rank)>& body) = 0;
};

}  // namespace cp::sim

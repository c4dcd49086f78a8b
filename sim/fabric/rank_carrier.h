// What carries the ranks of a fabric: how each has a stack and goes on.
#pragma once

#include <functional>

#include "shared/base/types.h"
#include "sim/fabric/baton.h"

namespace cp::sim {

class RankCarrier {
 public:
  virtual ~RankCarrier() = default;

  virtual Baton& baton() = 0;
  // Calls body(rank) once for each rank and returns when all have returned. The body does not throw. Ranks
  // that take turns await the baton first and pass it on last; before, the host has passed it to the first
  // one.
  virtual void run(const std::function<void(Rank)>& body) = 0;
};

}  // namespace cp::sim

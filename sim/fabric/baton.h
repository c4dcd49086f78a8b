// The baton: of ranks that take turns, the one that holds it runs.
#pragma once

#include "shared/base/types.h"

namespace cp::sim {

class Baton {
 public:
  virtual ~Baton() = default;

  // By the host, before a run: nobody holds it.
  virtual void reset() = 0;
  // By its holder, or by the host for the first one: `next` goes on, as soon as the holder awaits the baton
  // again or ends.
  virtual void pass_to(Rank next) = 0;
  // Returns when `self` holds it.
  virtual void await(Rank self) = 0;
};

}  // namespace cp::sim

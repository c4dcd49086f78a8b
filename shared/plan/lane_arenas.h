// LaneArenas: the arena that the kept plans of a lane share. Runs of one lane follow one another, and a plan
// reads none of its temporaries before it has written them, so that one arena serves all of a lane's plans.
//
// A plan that needs more than the lane's arena gets one of its own size. The device then moves the plans of
// the lane into that one, so that the one before is released; while it does so there are both. A program
// saves this peak if it prepares its greatest plan first.
#pragma once

#include <array>
#include <cstddef>
#include <memory>

#include "shared/plan/device.h"
#include "shared/plan/lanes.h"

namespace cp {

// `Arena` is the device's own type, with a member size_bytes. The plans own it; it goes with the last one.
template <class Arena>
class LaneArenas {
 public:
  // Null if no plan of the lane is kept, and for a lane that there is not.
  std::shared_ptr<Arena> of(LaneId lane) const {
    return lane >= 0 && lane < Lanes::kMost ? arenas_[static_cast<std::size_t>(lane)].lock() : nullptr;
  }
  // The lane's arena from here on, if it is greater than the one so far; returns whether it is. The device
  // then moves the lane's plans into it, when their runs have ended.
  bool offer(LaneId lane, const std::shared_ptr<Arena>& arena) {
    const std::shared_ptr<Arena> before = of(lane);
    if (before != nullptr && before->size_bytes >= arena->size_bytes) return false;
    arenas_.at(static_cast<std::size_t>(lane)) = arena;
    return true;
  }

 private:
  std::array<std::weak_ptr<Arena>, static_cast<std::size_t>(Lanes::kMost)> arenas_;
};

}  // namespace cp

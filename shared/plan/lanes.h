// Lanes: which streams of a device, and which groups, belong to which lane. Every device that keeps plans has
// one, so that all of them number streams alike and refuse alike. For the thread of the device's rank.
#pragma once

#include <cstddef>
#include <vector>

#include "shared/plan/device.h"
#include "shared/plan/plan.h"

namespace cp {

// The number that a plan's stream has in traces: s of lane l is 1000 l + s, since streams of two lanes have
// no common order. Of what devices observe it is the same.
StreamId stream_in_traces(LaneId lane, StreamId stream);

class Lanes {
 public:
  // How many lanes a device has at most. Chosen: each has streams of its own, which are threads on a host; a
  // program needs one for what it computes, and few for what it moves meanwhile.
  static constexpr LaneId kMost = 16;

  // The device's streams for a plan in the lane: element s is the device's stream for stream s of the plan.
  // Streams that the lane lacks are new ones, and get the next numbers. Throws InvalidInput, and changes
  // nothing, if the lane is not 0 .. kMost-1, or if a kept plan of another lane has a group of the same name
  // and ranks.
  //
  // `kinds`, by the plan's StreamId, is for a device whose streams differ, as those of a GPU do by priority:
  // two plans share a stream of the device only if both use it as the same kind. Without it all are of kind
  // 0.
  std::vector<StreamId> streams_for(const Plan& plan, LaneId lane, const std::vector<int>& kinds = {});

  // The plan is kept from here on, and no more. It must live in between.
  void keep(const Plan& plan, LaneId lane) { kept_.push_back({&plan, lane}); }
  void release(const Plan& plan, LaneId lane);

  // The end of the lane's last run; -1 if there was none.
  EventId& last_end(LaneId lane);

  // How many streams there are in all.
  std::size_t streams() const { return streams_; }
  // Forgets all plans and streams, behind an error.
  void clear() { *this = {}; }

 private:
  struct Kept {
    const Plan* plan = nullptr;
    LaneId lane = 0;
    bool operator==(const Kept&) const = default;
  };
  struct Stream {
    StreamId id = 0;
    int kind = 0;
  };
  std::size_t streams_ = 0;
  std::vector<std::vector<Stream>> by_lane_;
  std::vector<EventId> ends_ = std::vector<EventId>(kMost, -1);  // by lane
  std::vector<Kept> kept_;
};

}  // namespace cp

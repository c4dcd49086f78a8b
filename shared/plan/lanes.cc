#include "shared/plan/lanes.h"

#include <algorithm>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/plan/canonical.h"

namespace cp {
namespace {

void refuse_shared_groups(const Plan& plan, LaneId lane, const Plan& kept, LaneId other) {
  for (const Group& group : plan.groups) {
    if (std::find(kept.groups.begin(), kept.groups.end(), group) == kept.groups.end()) continue;
    throw InvalidInput(str("group ", canonical_name(group), " is used by a plan in lane ", other,
                           ", so a plan in lane ", lane,
                           " cannot use it: its collectives would have no order; put both plans in lane ",
                           other, ", or give one of them a group of another name"));
  }
}

// Chosen: more streams than any plan has.
constexpr StreamId kStreamsOfALane = 1000;

}  // namespace

StreamId stream_in_traces(LaneId lane, StreamId stream) {
  CP_INVARIANT(stream < kStreamsOfALane, "stream ", stream, " of a plan");
  return lane * kStreamsOfALane + stream;
}

std::vector<StreamId> Lanes::streams_for(const Plan& plan, LaneId lane, const std::vector<int>& kinds) {
  if (lane < 0 || lane >= kMost)
    throw InvalidInput(str("there is no lane ", lane, "; a device has the lanes 0 to ", kMost - 1));
  for (const Kept& kept : kept_) {
    if (kept.lane != lane) refuse_shared_groups(plan, lane, *kept.plan, kept.lane);
  }
  const auto index = static_cast<std::size_t>(lane);
  if (by_lane_.size() <= index) by_lane_.resize(index + 1);
  std::vector<Stream>& streams = by_lane_[index];
  std::vector<StreamId> chosen;
  std::vector<std::size_t> looked_at;  // by kind: streams of the lane that this plan has passed
  for (std::size_t i = 0; i < plan.streams.size(); ++i) {
    const int kind = kinds.empty() ? 0 : kinds[i];
    if (looked_at.size() <= static_cast<std::size_t>(kind))
      looked_at.resize(static_cast<std::size_t>(kind) + 1);
    std::size_t& at = looked_at[static_cast<std::size_t>(kind)];
    while (at < streams.size() && streams[at].kind != kind) ++at;
    if (at == streams.size()) streams.push_back({static_cast<StreamId>(streams_++), kind});
    chosen.push_back(streams[at++].id);
  }
  return chosen;
}

EventId& Lanes::last_end(LaneId lane) { return ends_.at(static_cast<std::size_t>(lane)); }

void Lanes::release(const Plan& plan, LaneId lane) {
  const auto found = std::find(kept_.begin(), kept_.end(), Kept{&plan, lane});
  if (found != kept_.end()) kept_.erase(found);
}

}  // namespace cp

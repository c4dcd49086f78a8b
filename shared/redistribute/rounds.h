// What a rank of a reduce_exchange holds at which time. Internal to shared/redistribute.
//
// Time counts three phases for each round: pack, exchange, accumulate. The rank's own part is copied before
// the first round. Both the cost of the move and the places of its buffers in the arena follow from these
// lives, so that the plan needs exactly what is costed.
#pragma once

#include <algorithm>
#include <cstdint>

#include "shared/plan/builder.h"
#include "shared/redistribute/traffic.h"

namespace cp::detail {

// Both ends included; never alive when end < begin.
struct Life {
  std::int64_t begin = 0, end = -1;
  bool at(std::int64_t time) const { return begin <= time && time <= end; }
  bool meets(const Life& other) const { return std::max(begin, other.begin) <= std::min(end, other.end); }
};

struct RoundLives {
  Life old_shard;         // from before the move
  Life packed, received;  // the staging
  Life new_shard;         // beyond the move
};
RoundLives lives_in_rounds(const RankTraffic& rank);

// The most elements alive at once, if the shards count as `old_numel` and `new_numel`.
std::int64_t live_in_rounds(const RankTraffic& rank, std::int64_t old_numel, std::int64_t new_numel);

// At which ends of the arena the staging and the new shard should be, given that of the old shard, so that
// they take no more than what is alive at once, whatever their sizes: seen from its end, no buffer is behind
// the place of one that is gone, as long as that matters.
struct RoundAnchors {
  Anchor packed, received, new_shard;
};
RoundAnchors anchors_in_rounds(const RoundLives& lives, Anchor old_shard);

}  // namespace cp::detail

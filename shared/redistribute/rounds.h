// What a rank of a reduce_exchange holds when. Internal to shared/redistribute.
//
// Time counts three phases a round: pack, exchange, accumulate. The rank's own part is copied before the
// first. The cost of the move and the places of its buffers in the arena both follow from these lives, so
// that the plan needs just what is costed.
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

// The most elements alive at once, where the shards count as this large.
std::int64_t live_in_rounds(const RankTraffic& rank, std::int64_t old_numel, std::int64_t new_numel);

// Ends of the arena for the staging and the new shard, given that of the old one, at which they take no more
// than what is alive at once, whatever their sizes: no buffer lies behind the place of one that is gone, as
// seen from its end, while that matters.
struct RoundAnchors {
  Anchor packed, received, new_shard;
};
RoundAnchors anchors_in_rounds(const RoundLives& lives, Anchor old_shard);

}  // namespace cp::detail

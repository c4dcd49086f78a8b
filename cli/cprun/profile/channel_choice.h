// How many channels NCCL's collectives should have beside attention, by what `cprun profile` measured.
#pragma once

#include <cstddef>
#include <map>
#include <vector>

#include "cli/cprun/profile/profile_rows.h"

namespace cp::cli {

struct ChannelChoice {
  int channels = 0;       // 0: as many as the library chooses
  std::size_t pairs = 0;  // attention beside a collective: how many pairs were compared
  // By number of channels: what one call of each kernel of attention and of each collective took beside the
  // other, all together. The least decides.
  std::map<int, double> total_us;
};

// The rule: of all numbers of channels the one with the least total time of attention and transfers beside
// each other. With few channels attention keeps its multiprocessors, and transfers take longer; the total
// weighs both. If totals are equal, the library's own choice comes first, and then fewer channels.
//
// Only numbers of channels that have all pairs which the library's own choice has are compared, so that a
// profile that was ended early does not prefer what it measured least. Without any pair the choice is the
// library's.
ChannelChoice choose_channels(const std::vector<ProfileRow>& rows);

}  // namespace cp::cli

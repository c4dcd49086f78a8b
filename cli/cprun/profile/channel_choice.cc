#include "cli/cprun/profile/channel_choice.h"

#include <algorithm>
#include <string>

namespace cp::cli {

ChannelChoice choose_channels(const std::vector<ProfileRow>& rows) {
  std::map<int, std::map<std::string, double>> pairs;  // by channels and by name of the pair
  for (const auto& [point, row] : rows_of<BesidePoint>(rows)) {
    if (!std::holds_alternative<AttentionPoint>(point->kernel) || row->time.samples == 0 ||
        row->collective_beside.samples == 0)
      continue;
    BesidePoint same = *point;
    same.channels = 0;
    pairs[point->channels][name(same)] = row->time.median_us + row->collective_beside.median_us;
  }
  ChannelChoice choice;
  const auto own = pairs.find(0);
  if (own == pairs.end()) return choice;
  choice.pairs = own->second.size();
  double least_us = 0;
  for (const auto& [channels, times] : pairs) {  // the library's own choice first, then fewer channels
    const bool complete = std::all_of(own->second.begin(), own->second.end(),
                                      [&times = times](const auto& of) { return times.contains(of.first); });
    if (!complete) continue;
    double total_us = 0;
    for (const auto& [pair, us] : own->second) total_us += times.at(pair);
    choice.total_us[channels] = total_us;
    if (channels == 0 || total_us < least_us) least_us = total_us, choice.channels = channels;
  }
  return choice;
}

}  // namespace cp::cli

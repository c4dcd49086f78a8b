#include "shared/plan/canonical.h"

#include <algorithm>
#include <cstddef>
#include <string_view>

#include "shared/base/text.h"

namespace cp {

std::string ranks_text(const std::vector<Rank>& ranks) {
  // Chosen: the ranks of a node of 8 GPUs are listed in full; a longer list would hide the message.
  constexpr std::size_t kMostRanks = 8;
  const std::vector<Rank> some(
      ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(std::min(ranks.size(), kMostRanks)));
  const std::string more =
      ranks.size() > some.size() ? str(" and ", ranks.size() - some.size(), " more") : std::string();
  return str(ranks.size() == 1 ? "rank " : "ranks ", join(some, ", "), more);
}

std::vector<Rank> members_of(const std::string& group) {
  const std::size_t open = group.rfind('['), close = group.rfind(']');
  if (open == std::string::npos || close == std::string::npos || close < open) return {};
  std::vector<Rank> ranks;
  for (const std::string_view part : split(std::string_view(group).substr(open + 1, close - open - 1), ',')) {
    const bool digits = !part.empty() && part.size() < 9 &&
                        std::ranges::all_of(part, [](char c) { return c >= '0' && c <= '9'; });
    if (!digits) return {};
    ranks.push_back(static_cast<Rank>(parse_int(part, "rank")));
  }
  return ranks;
}

}  // namespace cp

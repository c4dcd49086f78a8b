#include "shared/plan/dissent.h"

#include <algorithm>
#include <iterator>

namespace cp {

Dissent dissent_of(const std::map<std::string, std::vector<Rank>>& ranks_by_value) {
  if (ranks_by_value.size() < 2) return {};
  const auto fewer = [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); };
  const auto largest = std::max_element(ranks_by_value.begin(), ranks_by_value.end(), fewer);
  const auto as_many = std::count_if(ranks_by_value.begin(), ranks_by_value.end(), [&](const auto& party) {
    return party.second.size() == largest->second.size();
  });
  Dissent dissent{.ranks = {}, .is_tie = as_many > 1};
  for (auto party = ranks_by_value.begin(); party != ranks_by_value.end(); ++party) {
    if (dissent.is_tie || party != largest)
      dissent.ranks.insert(dissent.ranks.end(), party->second.begin(), party->second.end());
  }
  std::sort(dissent.ranks.begin(), dissent.ranks.end());
  return dissent;
}

Dissent fit_both(const Dissent& a, const Dissent& b) {
  if (a.ranks.empty()) return b;
  if (b.ranks.empty()) return a;
  Dissent both;
  std::set_intersection(a.ranks.begin(), a.ranks.end(), b.ranks.begin(), b.ranks.end(),
                        std::back_inserter(both.ranks));
  if (!both.ranks.empty()) {
    both.is_tie = a.is_tie && b.is_tie && both.ranks.size() > 1;
    return both;
  }
  std::set_union(a.ranks.begin(), a.ranks.end(), b.ranks.begin(), b.ranks.end(),
                 std::back_inserter(both.ranks));
  both.is_tie = a.is_tie || b.is_tie;
  return both;
}

}  // namespace cp

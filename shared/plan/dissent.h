// Who differs from the others, and what fits several such findings.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "shared/base/types.h"

namespace cp {

struct Dissent {
  std::vector<Rank> ranks = {};  // ascending; empty: nobody
  bool is_tie = false;           // no value has a majority: any of the ranks may be the wrong one
  bool operator==(const Dissent&) const = default;
};

// Of ranks that should all have one value, by value: those with another value than most, or all where no
// value has the most ranks.
Dissent dissent_of(const std::map<std::string, std::vector<Rank>>& ranks_by_value);

// The ranks that both findings fit; where no rank fits both, those of either.
Dissent fit_both(const Dissent& a, const Dissent& b);

}  // namespace cp

// Finds out which ranks differ from the others, and which ranks several such findings agree on.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "shared/base/types.h"

namespace cp {

struct Dissent {
  std::vector<Rank> ranks = {};  // ascending; empty: nobody
  bool is_tie = false;           // no value has a majority, so any of these ranks may be the wrong one
  bool operator==(const Dissent&) const = default;
};

// `ranks_by_value` lists the ranks that have each value, of ranks that should all have the same. Returns
// those that have another value than most; or all ranks, if no value has the most.
Dissent dissent_of(const std::map<std::string, std::vector<Rank>>& ranks_by_value);

// The ranks on which both findings agree; if there are none, those of either.
Dissent fit_both(const Dissent& a, const Dissent& b);

}  // namespace cp

// Ranks for tests.
#pragma once

#include <cstddef>
#include <numeric>
#include <vector>

#include "shared/base/types.h"

namespace cp::testing {

// 0 .. number-1.
inline std::vector<Rank> first_ranks(int number) {
  std::vector<Rank> ranks(static_cast<std::size_t>(number));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace cp::testing

// Random index sets, and their expansion into plain lists: the brute force that the operations on runs are
// held against.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

#include <rapidcheck.h>

#include "shared/placement/index_set.h"

namespace cp {

// The indices one by one, in local order.
inline std::vector<std::int64_t> expand(const IndexSet& set) {
  std::vector<std::int64_t> indices;
  for (const Run& run : set) {
    for (std::int64_t i = 0; i < run.count; ++i) {
      for (std::int64_t j = 0; j < run.run; ++j) indices.push_back(run.begin + i * run.stride + j);
    }
  }
  return indices;
}

// The runs of `candidates` that share no index with an earlier one: a valid set.
inline IndexSet without_repeats(const std::vector<Run>& candidates) {
  IndexSet set;
  std::set<std::int64_t> taken;
  for (const Run& run : candidates) {
    const std::vector<std::int64_t> indices = expand({run});
    const bool is_free =
        std::none_of(indices.begin(), indices.end(), [&](std::int64_t i) { return taken.contains(i); });
    if (!is_free) continue;
    set.push_back(run);
    taken.insert(indices.begin(), indices.end());
  }
  return set;
}

// A run of small numbers, so that two of them collide often. The stride of a single run, and stride == run,
// come up too.
inline rc::Gen<Run> small_run(std::int64_t begin_limit = 60, std::int64_t run_limit = 7,
                              std::int64_t count_limit = 9) {
  return rc::gen::map(
      rc::gen::tuple(rc::gen::inRange<std::int64_t>(0, begin_limit),
                     rc::gen::inRange<std::int64_t>(1, run_limit), rc::gen::inRange<std::int64_t>(0, 9),
                     rc::gen::inRange<std::int64_t>(1, count_limit)),
      [](const auto& t) {
        return Run{std::get<0>(t), std::get<1>(t), std::get<1>(t) + std::get<2>(t), std::get<3>(t)};
      });
}

// Valid, in any local order, not canonical; may be empty.
inline rc::Gen<IndexSet> small_index_set() {
  return rc::gen::map(rc::gen::container<std::vector<Run>>(small_run()), without_repeats);
}

// Exactly the positions 0 .. size-1 that `wanted` holds.
inline IndexSet positions_within(const IndexSet& wanted, std::int64_t size) { return clip(wanted, 0, size); }

}  // namespace cp

// Walks over a shard in local order, in stretches that are contiguous in the whole tensor, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "shared/base/types.h"
#include "shared/placement/index_set.h"

namespace cp::sim {

// Calls visit(global, local, count) for stretches of `count` elements of the shard with these index sets, in
// local order. The first element of a stretch has the number `global` in the whole tensor and `local` in the
// shard, both row-major. Trailing dimensions that the shard holds whole are walked as one.
template <class Visit>
void for_each_stretch(std::vector<IndexSet> box, Shape shape, const Visit& visit) {
  while (shape.size() > 1 && box.back() == index_range(0, shape.back())) {
    const std::int64_t inner = shape.back();
    box.pop_back();
    shape.pop_back();
    for (Run& run : box.back()) run = {run.begin * inner, run.run * inner, run.stride * inner, run.count};
    shape.back() *= inner;
  }
  std::int64_t local = 0;
  const auto walk = [&](const auto& self, std::size_t dim, std::int64_t row) -> void {
    for (const Run& run : box[dim]) {
      for (std::int64_t block = 0; block < run.count; ++block) {
        const std::int64_t begin = row + run.begin + block * run.stride;
        if (dim + 1 == shape.size()) {
          visit(begin, local, run.run);
          local += run.run;
          continue;
        }
        for (std::int64_t i = 0; i < run.run; ++i) self(self, dim + 1, (begin + i) * shape[dim + 1]);
      }
    }
  };
  if (shape.empty()) {
    visit(0, 0, 1);
  } else {
    walk(walk, 0, 0);
  }
}

}  // namespace cp::sim

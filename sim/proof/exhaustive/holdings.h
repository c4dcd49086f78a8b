// Holdings is a layout, written out element by element.
//
// The exhaustive search decides everything by counting elements and looking at their places in memory, so it
// shares no formula with the planner. Elements are numbered row-major over the global shape. What the ranks
// hold comes from indices() alone, expanded.
#pragma once

#include <cstdint>
#include <vector>

#include "shared/base/types.h"
#include "shared/placement/layout.h"

namespace cp::sim {

struct Holdings {
  // Chosen: the tables have a few numbers for each element and layout, and are for small tensors.
  static constexpr std::int64_t kMaxElements = 1 << 20;
  // Throws InvalidInput for a tensor with more elements than that.
  explicit Holdings(const Layout& layout);

  // The distinct shards, each with its elements in local memory order. Together the boxes hold every element
  // once. All ranks that hold nothing share an empty box.
  std::vector<std::vector<std::int32_t>> boxes;
  std::vector<std::int32_t> box_of_element;
  std::vector<std::int32_t> place_of_element;  // its place in that box

  std::vector<std::int32_t> box_of_rank;  // by position in the mesh, as is contribution_of_rank
  // Ranks with equal numbers hold parts of the same contribution: they agree in their coordinates along the
  // partial axes. 0 if nothing is partial.
  std::vector<std::int32_t> contribution_of_rank;
  std::int32_t num_contributions = 1;
  std::vector<int> partial_axes;  // those of more than one rank

  std::int64_t size_of_rank(std::size_t position) const {
    return static_cast<std::int64_t>(boxes[static_cast<std::size_t>(box_of_rank[position])].size());
  }
  std::int64_t max_size() const;
};

}  // namespace cp::sim

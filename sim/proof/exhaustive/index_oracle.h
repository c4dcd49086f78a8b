// The oracle of index maps finds what each rank of a layout holds, index by index, from what the splits are
// said to mean.
//
// It shares no code with shared/placement, except for the types, so that a wrong index map cannot agree with
// itself.
#pragma once

#include <cstdint>
#include <vector>

#include "shared/placement/layout.h"
#include "shared/placement/split.h"

namespace cp::sim {

using Indices = std::vector<std::int64_t>;

// The part number `index` of the list, if the split makes `parts` parts of it.
Indices split_elements(const Split& split, const Indices& list, int parts, int index);
// The elements of the list that lie in [begin, end).
Indices elements_within(const Indices& list, std::int64_t begin, std::int64_t end);

// The indices that `rank` holds of a dimension, found by splitting along one axis after the other.
Indices indices_by_elements(const Layout& layout, int dim, Rank rank);

// The row-major numbers, in the whole tensor, of the elements that the rank holds, in local order.
std::vector<std::int64_t> element_numbers(const Layout& layout, Rank rank);

// Which of the contributions to its elements a rank holds: the number of its coordinates along the partial
// axes, row-major.
std::int64_t contribution_of(const Layout& layout, Rank rank);
std::int64_t num_contributions(const Layout& layout);

}  // namespace cp::sim

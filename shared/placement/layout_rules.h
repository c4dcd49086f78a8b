// The rules that make a layout legal: the checks of make_layout(). Private to shared/placement. Each function
// throws InvalidInput if its rule is broken.
#pragma once

#include <vector>

#include "shared/placement/layout.h"

namespace cp {

// The dimension that `dim` means; a negative one counts from the end.
int resolve_dim(std::int64_t dim, int num_dims);

void check_shape(const Shape& shape, DType dtype);
void check_count(const std::vector<Placement>& placements, const Mesh& mesh);
void check_reductions(const std::vector<Placement>& placements, DType dtype);

// For each dimension the axes that shard it, in mesh order. Negative dims must have been resolved before.
std::vector<std::vector<int>> axes_in_mesh_order(const std::vector<Placement>& placements, int num_dims);
// An order must list, for each dimension, exactly the axes that shard it.
void check_order(const std::vector<std::vector<int>>& order, const std::vector<std::vector<int>>& mesh_order);

// Every split must fit every index list that it may have to divide, on every rank.
void check_splits(const Layout& layout);

}  // namespace cp

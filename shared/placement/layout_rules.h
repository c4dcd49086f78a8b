// What makes a layout legal: the checks of make_layout, for the sources of shared/placement alone. Each
// throws InvalidInput.
#pragma once

#include <vector>

#include "shared/placement/layout.h"

namespace cp {

// The dimension that `dim` means, which may count from the end.
int resolve_dim(std::int64_t dim, int num_dims);

void check_shape(const Shape& shape, DType dtype);
void check_count(const std::vector<Placement>& placements, const Mesh& mesh);
void check_reductions(const std::vector<Placement>& placements, DType dtype);

// For each dimension the axes that shard it, in mesh order. The dims of the shards are resolved.
std::vector<std::vector<int>> axes_in_mesh_order(const std::vector<Placement>& placements, int num_dims);
// An order must list, for each dimension, exactly the axes that shard it.
void check_order(const std::vector<std::vector<int>>& order, const std::vector<std::vector<int>>& mesh_order);

// Every split fits every list that it may have to divide.
void check_splits(const Layout& layout);

}  // namespace cp

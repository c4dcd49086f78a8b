// Lists every mesh of some ranks and every layout of a tensor on a mesh, and tells which redistributions
// between them are legal. The exhaustive checks run over these.
#pragma once

#include <optional>
#include <vector>

#include "shared/base/dtype.h"
#include "shared/base/types.h"
#include "shared/mesh/mesh.h"
#include "shared/placement/layout.h"

namespace cp::sim {

// All meshes over these ranks, in the order given: one for each way to write their number as an ordered
// product of factors greater than 1. The axes are called a, b, c, and so on. For example, eight ranks make
// a=8; a=2,b=4; a=4,b=2; and a=2,b=2,c=2. One rank makes a=1.
std::vector<Mesh> all_meshes(const std::vector<Rank>& ranks);
std::vector<Mesh> all_meshes(int num_ranks);  // of the ranks 0 .. num_ranks-1

// All layouts of the tensor on the mesh with Chunked splits. Each axis is Replicate, Shard of any dimension
// or, if a reduction is given, Partial with it; and for each dimension the axes that shard it come in every
// order. For example, there are 176 of them on a=2,b=2,c=2 for three dimensions and a reduction.
std::vector<Layout> all_layouts(const Mesh& mesh, const Shape& shape, DType dtype,
                                std::optional<ReduceOp> reduction);

// Whether the tensor can go from the one layout to the other. The target may be Partial only along axes along
// which the source is, and not at all on another mesh.
bool is_legal_pair(const Layout& source, const Layout& target);

}  // namespace cp::sim

// Every mesh of some ranks, every layout of a tensor on a mesh, and which redistributions between them are
// legal: what the exhaustive checks run over.
#pragma once

#include <optional>
#include <vector>

#include "shared/base/dtype.h"
#include "shared/base/types.h"
#include "shared/mesh/mesh.h"
#include "shared/placement/layout.h"

namespace cp::sim {

// All meshes over the ranks in the order given: one for each way to write their number as an ordered
// product of factors greater than 1. Axes are named a, b, c, ...: eight ranks make a=8; a=2,b=4; a=4,b=2;
// a=2,b=2,c=2. One rank makes a=1.
std::vector<Mesh> all_meshes(const std::vector<Rank>& ranks);
std::vector<Mesh> all_meshes(int num_ranks);  // of the ranks 0 .. num_ranks-1

// All layouts of the tensor on the mesh with Chunked splits: each axis Replicate, Shard of any dimension or,
// where a reduction is given, Partial with it; and for each dimension every order of the axes that shard it.
// 176 for a=2,b=2,c=2, three dimensions and a reduction.
std::vector<Layout> all_layouts(const Mesh& mesh, const Shape& shape, DType dtype,
                                std::optional<ReduceOp> reduction);

// Whether the tensor can go from one to the other: the target is Partial only along axes where the source is,
// and never on another mesh.
bool is_legal_pair(const Layout& source, const Layout& target);

}  // namespace cp::sim

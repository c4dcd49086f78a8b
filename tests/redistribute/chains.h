// Redistributions as tests write them down: layouts by the axes of each dimension, chains by the layouts they
// pass.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "shared/redistribute/redistribution.h"

namespace cp::testing {

// A layout from the axes that shard each dimension, outermost first, and the partial ones: "x,z|y||" with 4
// dims; "|P:x,y" at the end marks partial axes: "z|P:x,y" is a 1-D tensor, sharded by z, partial over x and
// y.
Layout layout_by_axes(const Mesh& mesh, std::string_view text, const Shape& shape, DType dtype = DType::f32);

// Placements in PyTorch's short form: "S0,R,P".
Layout layout_by_placements(const Mesh& mesh, std::string_view text, const Shape& shape,
                            DType dtype = DType::f32);

// The move between two layouts of one mesh that differ along `axes`; its kind follows from what the axes are
// in both.
Move move_between(const Layout& from, const Layout& to);

// The chain that passes the layouts, one move between neighbours.
Redistribution chain(const std::vector<Layout>& layouts, const RedistributeOptions& options = {});

// The kinds of the communicating moves in order: "all_gather all_to_all".
std::string communications(const Redistribution& redistribution);

// Whether some chain of the Pareto set is at least as good as this one in time, bytes and peak memory.
bool matched_by_pareto_set(const Redistribution& chain, const RedistributeOptions& options = {});

}  // namespace cp::testing

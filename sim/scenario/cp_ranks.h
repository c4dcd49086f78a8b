// Which ranks of a mesh split the sequence.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "shared/base/types.h"
#include "shared/mesh/mesh.h"

namespace cp::sim {

struct CpRanks {
  std::vector<Rank> ranks;
  std::string where;  // "cp=8", or which part of a larger mesh is run
};

// The ranks along the mesh's axis cp if it has one, else all.
CpRanks cp_ranks_of(const Mesh& mesh);
// Reads --mesh. Throws InvalidInput that names the flag.
Mesh parse_mesh_flag(std::string_view text);

}  // namespace cp::sim

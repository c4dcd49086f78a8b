#include "sim/scenario/cp_ranks.h"

#include <algorithm>

#include "shared/base/error.h"
#include "sim/scenario/read_values.h"

namespace cp::sim {

CpRanks cp_ranks_of(const Mesh& mesh) {
  CpRanks result{mesh.ranks(), mesh.to_string()};
  const auto& axes = mesh.axes();
  const bool has_cp =
      std::any_of(axes.begin(), axes.end(), [](const MeshAxis& axis) { return axis.name == "cp"; });
  if (!has_cp || mesh.num_axes() == 1) return result;
  const auto groups = mesh.groups("cp");
  result.ranks = groups.front();
  result.where +=
      str(", of whose ", groups.size(), " groups along cp, which all do the same, one is run: ranks ",
          result.ranks.front(), " to ", result.ranks.back());
  return result;
}

Mesh parse_mesh_flag(std::string_view text) {
  if (text.empty()) throw InvalidInput("--mesh is missing; add, for example, --mesh cp=8");
  return value_of("--mesh", text, [&] { return Mesh::parse(text); });
}

}  // namespace cp::sim

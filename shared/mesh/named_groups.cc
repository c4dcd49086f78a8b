#include "shared/mesh/named_groups.h"

#include <algorithm>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/text.h"

namespace cp {
namespace {

// The ranks of the world with the axes of the experts' grid, and efsdp as an axis or an alias.
Mesh expert_mesh(const ParallelDims& dims) {
  const MeshAxis replicate{"dp_replicate", dims.dp_replicate()}, etp{"etp", dims.etp()}, pp{"pp", dims.pp()};
  if (dims.expert_rule() == ExpertRule::nested)
    return Mesh({replicate, {"efsdp", dims.efsdp_size()}, {"ep", dims.ep()}, etp, pp});
  const Mesh mesh({replicate,
                   {"dp_shard", dims.dp_shard()},
                   {"ep", dims.ep()},
                   {"cp", dims.cp()},
                   {"rest_of_tp", dims.tp() / dims.etp()},
                   etp,
                   pp});
  const std::string pool[] = {"dp_shard", "cp", "rest_of_tp"};
  return mesh.flatten(pool, "efsdp");
}

}  // namespace

const std::vector<Rank>& NamedGroups::of(Rank rank) const {
  for (const std::vector<Rank>& group : groups) {
    if (std::find(group.begin(), group.end(), rank) != group.end()) return group;
  }
  throw InvalidInput(str("rank ", rank, " is not in the world; use a rank from 0 to ",
                         groups.size() * groups.front().size() - 1));
}

std::vector<NamedGroups> named_groups(const ParallelDims& dims) {
  const Mesh mesh = dims.build_mesh();
  std::vector<NamedGroups> all;
  for (const MeshAxis& axis : mesh.axes())
    all.push_back({.name = axis.name, .axes = {}, .of_experts = false, .groups = mesh.groups(axis.name)});
  for (const char* alias : {"fsdp", "dp", "loss"}) {
    if (!mesh.has_alias(alias)) continue;
    std::vector<std::string> axes;
    for (const int axis : mesh.axes_of(alias))
      axes.push_back(mesh.axes()[static_cast<std::size_t>(axis)].name);
    all.push_back(
        {.name = alias, .axes = std::move(axes), .of_experts = false, .groups = mesh.groups(alias)});
  }
  if (!dims.ep_enabled()) return all;
  const Mesh experts = expert_mesh(dims);
  for (const char* name : {"ep", "etp", "efsdp"}) {
    const bool is_axis =
        std::any_of(all.begin(), all.end(), [&](const NamedGroups& known) { return known.name == name; });
    if (!is_axis)
      all.push_back({.name = name, .axes = {}, .of_experts = true, .groups = experts.groups(name)});
  }
  return all;
}

}  // namespace cp

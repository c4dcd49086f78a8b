#include "shared/transformer/rank_groups.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "tests/support/any_case.h"
#include "tests/transformer/step_requests.h"

namespace cp::testing {
namespace {

RC_GTEST_PROP(RankGroups, AreThoseOfTheMesh, ()) {
  ParallelLayout layout;
  const auto degree = [] { return any_of(1, 2, 3); };
  layout.dp_replicate = degree(), layout.dp_shard = degree(), layout.cp = degree(), layout.tp = degree();
  layout.pp = degree();
  layout.order = pick("layout.order", rc::gen::elementOf(axis_orders()));
  if (any_of(true, false)) layout.sharding = ShardingGroup::dp_shard;
  const Mesh mesh = build_mesh(layout);
  const Rank rank = pick("rank", rc::gen::inRange(0, layout.world()));
  const RankGroups groups(layout, rank);
  const auto along = [&](std::vector<std::string> names) {
    std::vector<int> axes;
    for (const MeshAxis& axis : mesh.axes()) {
      if (std::find(names.begin(), names.end(), axis.name) != names.end())
        axes.push_back(mesh.axis_index(axis.name));
    }
    return mesh.group_of(rank, axes);
  };
  RC_ASSERT(groups.tp_group() == along({"tp"}));
  RC_ASSERT(groups.cp_group() == along({"cp"}));
  RC_ASSERT(groups.pp_group() == along({"pp"}));
  const bool with_cp = layout.sharding == ShardingGroup::dp_shard_cp;
  // The ranks that differ from one in some axes of where its parameters lie.
  const auto data_group = [](const RankGroups& of, const RankGroups::DataMesh& data,
                             const std::vector<std::string>& names) {
    std::vector<int> axes;
    for (const std::string& name : names) axes.push_back(data.mesh.axis_index(name));
    return of.at_data_indices(data.mesh.group_of(of.data_index(), axes));
  };
  const RankGroups::DataMesh dense = groups.data_mesh();
  RC_ASSERT(groups.at_data_indices({groups.data_index()}) == std::vector<Rank>{rank});
  RC_ASSERT(data_group(groups, dense, dense.shard) ==
            (with_cp ? along({"dp_shard", "cp"}) : along({"dp_shard"})));
  const auto sorted = [](std::vector<Rank> ranks) {
    std::sort(ranks.begin(), ranks.end());
    return ranks;
  };
  RC_ASSERT(sorted(data_group(groups, dense, dense.replicate)) ==
            sorted(with_cp ? along({"dp_replicate"}) : along({"dp_replicate", "cp"})));
  for (int ep = 1; ep <= layout.sharding_size(); ++ep) {
    if (layout.sharding_size() % ep != 0 || layout.dp_shard * layout.cp % ep != 0) continue;
    layout.ep = ep;
    const RankGroups of_experts(layout, rank);
    // Neighbours in the order of the mesh; every expert is shared by as many ranks as a dense layer, over ep.
    const std::vector<Rank> all = along({"dp_shard", "cp"}), neighbours = of_experts.ep_group();
    RC_ASSERT(sorted(groups.replica_group()) == sorted(all));
    const auto at = std::find(all.begin(), all.end(), neighbours.front()) - all.begin();
    RC_ASSERT(at % ep == 0);
    RC_ASSERT(std::equal(neighbours.begin(), neighbours.end(), all.begin() + at));
    const auto sharing = [&](const RankGroups& of) { return data_group(of, of.expert_mesh(), {"efsdp"}); };
    const auto holding = [&](const RankGroups& of) {
      return data_group(of, of.expert_mesh(), {"dp_replicate", "copies"});
    };
    const std::vector<Rank> shards = sharing(of_experts), copies = holding(of_experts);
    RC_ASSERT(data_group(of_experts, of_experts.expert_mesh(), {"ep"}) == neighbours);
    RC_ASSERT(static_cast<int>(shards.size()) == layout.sharding_size() / ep);
    RC_ASSERT(static_cast<int>(shards.size() * copies.size()) * ep ==
              layout.dp_replicate * layout.dp_shard * layout.cp);
    for (const std::vector<Rank>& ranks : {shards, copies, neighbours}) {
      RC_ASSERT(std::count(ranks.begin(), ranks.end(), rank) == 1);
    }
    for (const Rank other : shards) RC_ASSERT(sharing(RankGroups(layout, other)) == shards);
    for (const Rank other : copies) RC_ASSERT(sorted(holding(RankGroups(layout, other))) == sorted(copies));
  }
}

}  // namespace
}  // namespace cp::testing

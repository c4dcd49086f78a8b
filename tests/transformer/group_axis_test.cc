// Every group of a step's plan belongs to an axis of its layout.
#include "shared/transformer/group_axis.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/plan/plan.h"
#include "shared/transformer/rank_groups.h"
#include "tests/support/any_case.h"
#include "tests/transformer/step_requests.h"

namespace cp::testing {
namespace {

TEST(GroupAxis, IsOfTheGroupsName) {
  const std::map<std::string, GroupAxis> axes = {{"tp", GroupAxis::tp},
                                                 {"tp_kv", GroupAxis::tp},
                                                 {"norm_tp", GroupAxis::tp},
                                                 {"cp", GroupAxis::cp},
                                                 {"ring_ulysses", GroupAxis::cp},
                                                 {"ulysses_ring", GroupAxis::cp},
                                                 {"ring", GroupAxis::cp},
                                                 {"inner_ring", GroupAxis::cp},
                                                 {"outer_ring", GroupAxis::cp},
                                                 {"ulysses", GroupAxis::cp},
                                                 {"ep", GroupAxis::ep},
                                                 {"fsdp", GroupAxis::fsdp},
                                                 {"fsdp_reduce", GroupAxis::fsdp},
                                                 {"fsdp_experts", GroupAxis::fsdp},
                                                 {"fsdp_experts_reduce", GroupAxis::fsdp},
                                                 {"norm_shards", GroupAxis::fsdp},
                                                 {"replicas", GroupAxis::dp},
                                                 {"replicas_experts", GroupAxis::dp},
                                                 {"pp", GroupAxis::pp},
                                                 {"pp_gradients", GroupAxis::pp},
                                                 {"tied", GroupAxis::pp},
                                                 {"norm_pp", GroupAxis::pp}};
  for (const auto& [group, axis] : axes) {
    EXPECT_EQ(axis_of_group(group), axis) << group;
    EXPECT_EQ(joins_regions(group), group == "tp") << group;
  }
  EXPECT_FALSE(joins_regions("dp_shard")) << "of another plan";
}

TEST(GroupAxis, HasAName) {
  std::set<std::string_view> names;
  for (const GroupAxis axis :
       {GroupAxis::tp, GroupAxis::cp, GroupAxis::ep, GroupAxis::fsdp, GroupAxis::dp, GroupAxis::pp})
    names.insert(name(axis));
  EXPECT_EQ(names, (std::set<std::string_view>{"tp", "cp", "ep", "fsdp", "dp", "pp"}));
}

// Nothing of an unknown name is counted for an axis, not even where it begins like one.
TEST(GroupAxisDeathTest, OfAnUnknownNameIsADefect) {
  EXPECT_DEATH(axis_of_group("tp_twice"), "the group tp_twice, of which .* knows no axis");
  EXPECT_DEATH(axis_of_group("dp"), "the group dp");
  EXPECT_DEATH(axis_of_group(""), "knows no axis");
}

// The ranks that stand where this one does in the data mesh, but for the axes.
std::vector<Rank> over(const RankGroups& groups, const RankGroups::DataMesh& data,
                       const std::vector<std::string>& names) {
  std::vector<int> axes;
  for (const std::string& name : names) axes.push_back(data.mesh.axis_index(name));
  return groups.at_data_indices(data.mesh.group_of(groups.data_index(), axes));
}

// The cp groups of all tp ranks, among which rows go from home to home.
std::vector<Rank> with_tp_ranks(const RankGroups& groups, const ParallelLayout& layout) {
  std::vector<Rank> all;
  for (const Rank rank : groups.tp_group()) {
    const std::vector<Rank> more = RankGroups(layout, rank).cp_group();
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

// The ranks among which parameters that are not sharded have replicas: all that the data mesh has them on.
std::vector<std::vector<Rank>> whole_replicas(const RankGroups& groups) {
  std::vector<std::vector<Rank>> all;
  for (const RankGroups::DataMesh& data : {groups.data_mesh(), groups.expert_mesh()}) {
    std::vector<std::string> axes = data.shard;
    axes.insert(axes.end(), data.replicate.begin(), data.replicate.end());
    all.push_back(over(groups, data, axes));
  }
  return all;
}

// The ranks that may be in a group of the axis.
std::vector<std::vector<Rank>> groups_along(const RankGroups& groups, const ParallelLayout& layout,
                                            GroupAxis axis) {
  switch (axis) {
    case GroupAxis::tp:
      return {groups.tp_group()};
    case GroupAxis::cp:
      return {groups.cp_group(), with_tp_ranks(groups, layout)};
    case GroupAxis::ep:
      return {groups.ep_group()};
    case GroupAxis::fsdp:
    case GroupAxis::dp: {
      const RankGroups::DataMesh dense = groups.data_mesh(), experts = groups.expert_mesh();
      // The norm is added up over a whole replica where experts are spread over other ranks.
      return axis == GroupAxis::fsdp
                 ? std::vector{over(groups, dense, dense.shard), over(groups, experts, experts.shard),
                               groups.replica_group()}
                 : std::vector{over(groups, dense, dense.replicate),
                               over(groups, experts, experts.replicate)};
    }
    case GroupAxis::pp:
      return {groups.pp_group()};
  }
  return {};
}

// Whatever is drawn: the plan has no group that the table does not know, and all ranks of each lie along its
// axis.
RC_GTEST_PROP(GroupAxis, IsOfAllGroupsOfAStep, ()) {
  const StepRequest request = any_request();
  for (const StepPart part : parts_of(request)) {
    for (const Plan& plan : plans_of_all_ranks(request, part)) {
      const RankGroups groups(request.layout, plan.self);
      for (const Group& group : plan.groups) {
        const GroupAxis axis = axis_of_group(group.name);
        const auto along = group.name.ends_with("_whole") ? whole_replicas(groups)
                                                          : groups_along(groups, request.layout, axis);
        RC_LOG() << group.name << " of rank " << plan.self << " counts as " << name(axis) << "\n";
        RC_ASSERT(std::any_of(along.begin(), along.end(), [&](const std::vector<Rank>& ranks) {
          return std::all_of(group.ranks.begin(), group.ranks.end(), [&](Rank rank) {
            return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
          });
        }));
      }
    }
  }
}

}  // namespace
}  // namespace cp::testing

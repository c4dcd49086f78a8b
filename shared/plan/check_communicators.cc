#include <algorithm>

#include "shared/base/index.h"
#include "shared/plan/canonical.h"
#include "shared/plan/check_internal.h"

namespace cp::checker {
namespace {

// One plan's declaration of a group.
struct Declaration {
  const Group* group = nullptr;
  Communicator::Member member;
};

bool same_group(const Declaration& a, const Declaration& b) { return *a.group == *b.group; }
bool before(const Declaration& a, const Declaration& b) {
  if (const auto order = a.group->name <=> b.group->name; order != 0) return order < 0;
  if (const auto order = a.group->ranks <=> b.group->ranks; order != 0) return order < 0;
  return a.member.plan < b.member.plan;
}

// Why a member is absent: no plan, or one that calls the group something else.
[[noreturn]] void fail_absent(const World& world, const Declaration& declared, Rank absent) {
  if (const auto& ranks = declared.group->ranks; std::count(ranks.begin(), ranks.end(), absent) > 1) {
    throw CheckFailure(str("group ", text(*declared.group), " holds rank ", absent, " twice"));
  }
  const std::string who =
      str("rank ", world.ranks[idx(declared.member.plan)].plan->self, " has group ", text(*declared.group));
  for (const RankPlan& rank : world.ranks) {
    if (rank.plan->self != absent) continue;
    std::vector<std::string> groups;
    for (const Group& group : rank.plan->groups) groups.push_back(text(group));
    throw CollectiveMismatch(str(who, ", but the plan of rank ", absent, " has not; it has ",
                                 groups.empty() ? "no group" : join(groups, ", "),
                                 "; a group has the same name and order of ranks on all its members"),
                             {.group = canonical_name(*declared.group)});
  }
  throw CollectiveMismatch(
      str(who, ", but there is no plan for rank ", absent, "; check the plans of all ranks together"),
      {.group = canonical_name(*declared.group)});
}

}  // namespace

void find_communicators(World& world) {
  std::vector<Declaration> all;
  for (std::size_t i = 0; i < world.ranks.size(); ++i) {
    RankPlan& rank = world.ranks[i];
    rank.communicator.resize(rank.plan->groups.size());
    for (std::size_t g = 0; g < rank.plan->groups.size(); ++g) {
      all.push_back({&rank.plan->groups[g], {static_cast<std::int32_t>(i), static_cast<GroupId>(g)}});
    }
  }
  std::sort(all.begin(), all.end(), before);
  for (std::size_t begin = 0, end = 0; begin < all.size(); begin = end) {
    const Group& group = *all[begin].group;
    Communicator communicator{&group, std::vector<Communicator::Member>(group.ranks.size())};
    for (end = begin; end < all.size() && same_group(all[begin], all[end]); ++end) {
      RankPlan& rank = world.ranks[idx(all[end].member.plan)];
      const std::size_t group_id = idx(all[end].member.group);
      Communicator::Member& member = communicator.members[idx(rank.index_in_group[group_id])];
      if (member.plan >= 0) {
        throw CheckFailure(str("rank ", rank.plan->self, ": declares group ", text(group),
                               " twice; a communicator has one number in a plan"));
      }
      member = all[end].member;
      rank.communicator[group_id] = static_cast<std::int32_t>(world.communicators.size());
    }
    for (std::size_t index = 0; index < group.ranks.size(); ++index) {
      if (communicator.members[index].plan < 0) fail_absent(world, all[begin], group.ranks[index]);
    }
    world.communicators.push_back(std::move(communicator));
  }
}

}  // namespace cp::checker

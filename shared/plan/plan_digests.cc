#include "shared/plan/plan_digests.h"

#include <algorithm>
#include <set>
#include <utility>

#include "shared/base/error.h"
#include "shared/plan/canonical.h"

namespace cp {
namespace {

using Parties = std::map<std::string, std::vector<Rank>>;

// "ranks 0, 1, 3 have 1a2b..., rank 2 has 3c4d..."; most first.
std::string describe(const Parties& parties) {
  std::vector<std::pair<std::string, std::vector<Rank>>> ordered(parties.begin(), parties.end());
  std::ranges::sort(ordered, [](const auto& a, const auto& b) {
    return a.second.size() != b.second.size() ? a.second.size() > b.second.size() : a.second < b.second;
  });
  std::vector<std::string> texts;
  for (const auto& [what, ranks] : ordered)
    texts.push_back(str(ranks_text(ranks), ranks.size() == 1 ? " has " : " have ", what));
  return join(texts, ", ");
}

// What the members of a group have: the digest of its collectives, or nothing.
Parties parties_of(const std::string& group, const std::map<Rank, PlanDigests>& ranks) {
  const std::vector<Rank> members = members_of(group);
  Parties parties;
  for (const auto& [rank, digests] : ranks) {
    const auto known = std::ranges::find(digests.groups, group, &PlanDigests::GroupDigest::group);
    if (known != digests.groups.end()) {
      parties[to_string(known->collectives)].push_back(rank);
    } else if (std::ranges::find(members, rank) != members.end()) {
      parties["no such group"].push_back(rank);
    }
  }
  return parties;
}

}  // namespace

PlanDigests plan_digests(const Plan& plan) {
  PlanDigests digests{plan.inputs, {}};
  for (std::size_t i = 0; i < plan.groups.size(); ++i) {
    digests.groups.push_back(
        {canonical_name(plan.groups[i]), collective_digest(plan, static_cast<GroupId>(i))});
  }
  return digests;
}

PlanDifference compare_plan_digests(const std::map<Rank, PlanDigests>& ranks) {
  Parties inputs;
  std::set<std::string> groups;
  for (const auto& [rank, digests] : ranks) {
    inputs[to_string(digests.inputs)].push_back(rank);
    for (const PlanDigests::GroupDigest& group : digests.groups) groups.insert(group.group);
  }
  std::vector<std::string> texts;
  Dissent dissent;
  const auto add = [&](const std::string& what, const Parties& parties) {
    if (parties.size() < 2) return;
    texts.push_back(str(what, ": ", describe(parties)));
    dissent = fit_both(dissent, dissent_of(parties));
  };
  add("inputs", inputs);
  for (const std::string& group : groups) add("collectives of group " + group, parties_of(group, ranks));
  return {join(texts, "; "), std::move(dissent)};
}

std::string plan_difference(const std::map<Rank, PlanDigests>& ranks) {
  return compare_plan_digests(ranks).text;
}

void require_equal_plans(const std::map<Rank, PlanDigests>& ranks) {
  PlanDifference difference = compare_plan_digests(ranks);
  if (difference.text.empty()) return;
  throw CollectiveMismatch(
      str("the ranks' plans differ (", difference.text,
          "); give all ranks the same scenario, or the same program and calls"),
      {.culprits = std::move(difference.dissent.ranks), .is_tie = difference.dissent.is_tie});
}

void require_equal_plans(std::span<const Plan> plans) {
  std::map<Rank, PlanDigests> ranks;
  for (const Plan& plan : plans) ranks.emplace(plan.self, plan_digests(plan));
  require_equal_plans(ranks);
}

}  // namespace cp

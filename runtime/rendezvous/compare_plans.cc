#include "runtime/rendezvous/compare_plans.h"

#include <algorithm>
#include <map>
#include <set>

#include "runtime/rendezvous/wire.h"
#include "shared/plan/canonical.h"

namespace cp::runtime {
namespace {

std::string to_bytes(const PlanDigests& digests) {
  proto::PlanDigests message;
  to_wire(digests.inputs, *message.mutable_inputs());
  for (const PlanDigests::GroupDigest& group : digests.groups) {
    message.add_groups()->set_group(group.group);
    to_wire(group.collectives, *message.mutable_groups()->rbegin()->mutable_collectives());
  }
  return message.SerializeAsString();
}

PlanDigests from_bytes(const std::string& bytes, Rank rank) {
  proto::PlanDigests message;
  if (!message.ParseFromString(bytes))
    throw RendezvousError(str("the digests of rank ", rank, " cannot be read"));
  PlanDigests digests{from_wire(message.inputs()), {}};
  for (const auto& group : message.groups())
    digests.groups.push_back({printable(group.group()), from_wire(group.collectives())});
  return digests;
}

// "ranks 0, 1, 3 have 1a2b..., rank 2 has 3c4d..."; empty when all have the same. Most first.
std::string difference(const std::map<std::string, std::vector<Rank>>& parties) {
  if (parties.size() < 2) return "";
  std::vector<std::pair<std::string, std::vector<Rank>>> ordered(parties.begin(), parties.end());
  std::ranges::sort(ordered, [](const auto& a, const auto& b) {
    return a.second.size() != b.second.size() ? a.second.size() > b.second.size() : a.second < b.second;
  });
  std::vector<std::string> texts;
  for (const auto& [what, ranks] : ordered)
    texts.push_back(str(ranks_text(ranks), ranks.size() == 1 ? " has " : " have ", what));
  return join(texts, ", ");
}

void require_equal(const std::map<Rank, PlanDigests>& ranks) {
  const std::string text = plan_difference(ranks);
  if (text.empty()) return;
  throw CollectiveMismatch(str("the ranks' plans differ (", text,
                               "); give all ranks the same scenario, or the same program and calls"));
}

}  // namespace

PlanDigests plan_digests(const Plan& plan) {
  PlanDigests digests{plan.inputs, {}};
  for (std::size_t i = 0; i < plan.groups.size(); ++i) {
    const Group& group = plan.groups[i];
    digests.groups.push_back({canonical_name(group), collective_digest(plan, static_cast<GroupId>(i))});
  }
  return digests;
}

std::string plan_difference(const std::map<Rank, PlanDigests>& ranks) {
  std::map<std::string, std::vector<Rank>> inputs;
  std::set<std::string> groups;
  for (const auto& [rank, digests] : ranks) {
    inputs[to_string(digests.inputs)].push_back(rank);
    for (const PlanDigests::GroupDigest& group : digests.groups) groups.insert(group.group);
  }
  std::vector<std::string> texts;
  if (const std::string text = difference(inputs); !text.empty()) texts.push_back("inputs: " + text);
  for (const std::string& name : groups) {
    const std::vector<Rank> members = members_of(name);
    std::map<std::string, std::vector<Rank>> collectives;
    for (const auto& [rank, digests] : ranks) {
      const auto known = std::ranges::find(digests.groups, name, &PlanDigests::GroupDigest::group);
      if (known != digests.groups.end()) {
        collectives[to_string(known->collectives)].push_back(rank);
      } else if (std::ranges::find(members, rank) != members.end()) {
        collectives["no such group"].push_back(rank);
      }
    }
    if (const std::string text = difference(collectives); !text.empty())
      texts.push_back(str("collectives of group ", name, ": ", text));
  }
  return join(texts, "; ");
}

void compare_plans(RendezvousClient& client, const PlanDigests& digests, RendezvousClient::Timeout timeout) {
  std::map<Rank, PlanDigests> ranks;
  for (const std::string& bytes : client.all_gather("plan digests", to_bytes(digests), timeout)) {
    const auto rank = static_cast<Rank>(ranks.size());
    ranks.emplace(rank, from_bytes(bytes, rank));
  }
  require_equal(ranks);
}

void compare_plans(RendezvousClient& client, const Plan& plan, RendezvousClient::Timeout timeout) {
  compare_plans(client, plan_digests(plan), timeout);
}

void GroupPlanComparison::compare(const Plan& plan) {
  const PlanDigests all = plan_digests(plan);
  for (std::size_t i = 0; i < plan.groups.size(); ++i) {
    const PlanDigests own{all.inputs, {all.groups[i]}};
    const std::string& group = all.groups[i].group;
    const std::string prefix = str("plan/", group, "/", compared_[group]++, "/");
    client_.set(str(prefix, plan.self), to_bytes(own));
    std::map<Rank, PlanDigests> members{{plan.self, own}};
    for (const Rank peer : plan.groups[i].ranks) {
      if (peer != plan.self) members.emplace(peer, from_bytes(client_.get(str(prefix, peer)), peer));
    }
    require_equal(members);
  }
}

}  // namespace cp::runtime

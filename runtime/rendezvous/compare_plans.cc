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

}  // namespace

PlanDigests plan_digests(const Plan& plan) {
  PlanDigests digests{plan.inputs, {}};
  for (std::size_t i = 0; i < plan.groups.size(); ++i) {
    const Group& group = plan.groups[i];
    digests.groups.push_back({canonical_name(group), collective_digest(plan, static_cast<GroupId>(i))});
  }
  return digests;
}

std::string plan_difference(const std::vector<PlanDigests>& ranks) {
  std::map<std::string, std::vector<Rank>> inputs;
  std::set<std::string> groups;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    inputs[to_string(ranks[rank].inputs)].push_back(static_cast<Rank>(rank));
    for (const PlanDigests::GroupDigest& group : ranks[rank].groups) groups.insert(group.group);
  }
  std::vector<std::string> texts;
  if (const std::string text = difference(inputs); !text.empty()) texts.push_back("inputs: " + text);
  for (const std::string& name : groups) {
    const std::vector<Rank> members = members_of(name);
    std::map<std::string, std::vector<Rank>> collectives;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      const auto& own = ranks[rank].groups;
      const auto known = std::ranges::find(own, name, &PlanDigests::GroupDigest::group);
      if (known != own.end()) {
        collectives[to_string(known->collectives)].push_back(static_cast<Rank>(rank));
      } else if (std::ranges::find(members, static_cast<Rank>(rank)) != members.end()) {
        collectives["no such group"].push_back(static_cast<Rank>(rank));
      }
    }
    if (const std::string text = difference(collectives); !text.empty())
      texts.push_back(str("collectives of group ", name, ": ", text));
  }
  return join(texts, "; ");
}

void compare_plans(RendezvousClient& client, const PlanDigests& digests, RendezvousClient::Timeout timeout) {
  std::vector<PlanDigests> ranks;
  for (const std::string& bytes : client.all_gather("plan digests", to_bytes(digests), timeout))
    ranks.push_back(from_bytes(bytes, static_cast<Rank>(ranks.size())));
  const std::string text = plan_difference(ranks);
  if (!text.empty()) {
    throw CollectiveMismatch(
        str("the ranks' plans differ (", text, "); give all ranks the same scenario and the same program"));
  }
}

void compare_plans(RendezvousClient& client, const Plan& plan, RendezvousClient::Timeout timeout) {
  compare_plans(client, plan_digests(plan), timeout);
}

}  // namespace cp::runtime

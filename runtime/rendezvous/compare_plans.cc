#include "runtime/rendezvous/compare_plans.h"

#include <algorithm>
#include <map>

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

}  // namespace

void compare_plans(RendezvousClient& client, const PlanDigests& digests, RendezvousClient::TimeLimit limit) {
  std::map<Rank, PlanDigests> ranks;
  for (const std::string& bytes : client.all_gather("plan digests", to_bytes(digests), limit)) {
    const auto rank = static_cast<Rank>(ranks.size());
    ranks.emplace(rank, from_bytes(bytes, rank));
  }
  require_equal_plans(ranks);
}

void compare_plans(RendezvousClient& client, const Plan& plan, RendezvousClient::TimeLimit limit) {
  compare_plans(client, plan_digests(plan), limit);
}

void GroupPlanComparison::compare(const Plan& plan) {
  const PlanDigests all = plan_digests(plan);
  for (std::size_t i = 0; i < plan.groups.size(); ++i) {
    const PlanDigests own{all.inputs, {all.groups[i]}};
    std::vector<Rank> ranks = plan.groups[i].ranks;
    std::sort(ranks.begin(), ranks.end());
    const std::string name = str("plans of group ", all.groups[i].group);
    std::map<Rank, PlanDigests> members;
    for (const std::string& bytes : client_.all_gather(ranks, name, to_bytes(own))) {
      const Rank rank = ranks[members.size()];
      members.emplace(rank, from_bytes(bytes, rank));
    }
    require_equal_plans(members);
  }
}

}  // namespace cp::runtime

#include "sim/cost/timeline/calls.h"

#include <algorithm>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "shared/base/text.h"

namespace cp::sim {
namespace {

std::vector<PeerBytes> by_peer(const std::vector<Transfer>& transfers, const Plan& plan,
                               const std::vector<Rank>& ranks) {
  std::vector<PeerBytes> sums;
  for (const Transfer& transfer : transfers) {
    const std::int64_t bytes =
        transfer.view.numel() * size_bytes(plan.buffers[idx(transfer.view.buffer)].dtype);
    sums.push_back({ranks[idx(transfer.peer)], bytes});
  }
  std::stable_sort(sums.begin(), sums.end(), [](const auto& a, const auto& b) { return a.peer < b.peer; });
  std::size_t kept = 0;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    if (kept > 0 && sums[kept - 1].peer == sums[i].peer) {
      sums[kept - 1].bytes += sums[i].bytes;
    } else {
      sums[kept++] = sums[i];
    }
  }
  sums.resize(kept);
  return sums;
}

}  // namespace

Calls::World Calls::make_world(const Group& group, Rank self) const {
  World world{group.name, group.ranks, {}, std::vector<std::int32_t>(programs_.size(), -1)};
  for (const Rank rank : group.ranks) {
    const auto at = position_of_.find(fold_.representative(rank));
    if (at == position_of_.end()) {
      throw InvalidInput(str("group ", group.name, " of rank ", self, " has rank ", rank,
                             ", whose plan is missing; give the plans of all members"));
    }
    std::int32_t& member = world.member_of[idx(at->second)];
    if (member >= 0) continue;
    member = static_cast<std::int32_t>(world.positions.size());
    world.positions.push_back(at->second);
  }
  return world;
}

Calls::Calls(const std::vector<Program>& programs, const Fold& fold)
    : programs_(programs), fold_(fold), parts_(programs.size()), traffic_(programs.size()) {
  for (std::size_t p = 0; p < programs.size(); ++p) {
    position_of_[programs[p].plan().self] = static_cast<std::int32_t>(p);
  }
  std::map<std::pair<std::string, std::vector<Rank>>, std::int32_t> known;  // to worlds_
  std::vector<std::vector<CallId>> of_world;                                // its calls in order
  for (std::size_t p = 0; p < programs.size(); ++p) {
    const Plan& plan = programs[p].plan();
    std::vector<std::int32_t> worlds;
    for (const Group& group : plan.groups) {
      const auto [at, added] = known.try_emplace({group.name, orbit_key(group.ranks, fold)},
                                                 static_cast<std::int32_t>(worlds_.size()));
      if (added) {
        worlds_.push_back(make_world(group, plan.self));
        of_world.emplace_back();
      }
      worlds.push_back(at->second);
    }
    std::vector<std::size_t> next(plan.groups.size(), 0);
    parts_[p].assign(idx(programs[p].size()), {});
    for (NodeId node = 0; node < programs[p].size(); ++node) {
      const auto* collective = std::get_if<Collective>(&programs[p].step(node).work);
      if (collective == nullptr) continue;
      const GroupId group = group_of(*collective);
      const std::int32_t world = worlds[idx(group)];
      std::vector<CallId>& calls = of_world[idx(world)];
      const std::size_t sequence = next[idx(group)]++;
      if (sequence == calls.size()) {
        const auto members = worlds_[idx(world)].positions.size();
        calls.push_back(static_cast<CallId>(calls_.size()));
        calls_.push_back(
            {world, 0, static_cast<std::int32_t>(members), std::vector<TimedCall::Member>(members)});
      }
      const CallId id = calls[sequence];
      const std::int32_t member = worlds_[idx(world)].member_of[p];
      parts_[p][idx(node)] = {id, member};
      calls_[idx(id)].members[idx(member)].node = node;
    }
  }
}

const Calls::Traffic& Calls::traffic(std::size_t position, StepId step) {
  const auto [at, added] = traffic_[position].try_emplace(step);
  if (added) {
    const Plan& plan = programs_[position].plan();
    const StepRef ref = programs_[position].ref(step);
    const auto& exchange = std::get<Exchange>(std::get<Collective>(ref.step->work));
    const std::vector<Rank>& ranks = plan.groups[idx(exchange.group)].ranks;
    at->second = {by_peer(exchange.sends, plan, ranks), by_peer(exchange.recvs, plan, ranks)};
  }
  return at->second;
}

}  // namespace cp::sim

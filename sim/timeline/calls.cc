#include "sim/timeline/calls.h"

#include <algorithm>

#include "shared/base/error.h"
#include "shared/base/text.h"

namespace cp::sim {
namespace {

std::size_t idx(std::int64_t value) { return static_cast<std::size_t>(value); }

std::vector<PeerBytes> by_peer(const std::vector<Transfer>& transfers, const Plan& plan) {
  std::vector<PeerBytes> sums;
  for (const Transfer& transfer : transfers) {
    const std::int64_t bytes =
        transfer.view.numel() * size_bytes(plan.buffers[idx(transfer.view.buffer)].dtype);
    sums.push_back({transfer.peer, bytes});
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

Calls::Calls(const std::vector<Program>& programs)
    : programs_(programs), parts_(programs.size()), traffic_(programs.size()) {
  std::map<Rank, std::int32_t> position_of;
  for (std::size_t p = 0; p < programs.size(); ++p) {
    position_of[programs[p].plan().self] = static_cast<std::int32_t>(p);
  }
  std::map<std::pair<std::string, std::vector<Rank>>, std::int32_t> known;  // to worlds_
  std::vector<std::vector<CallId>> of_world;                                // its calls in order
  for (std::size_t p = 0; p < programs.size(); ++p) {
    const Plan& plan = programs[p].plan();
    std::vector<std::int32_t> worlds, indices;
    for (const Group& group : plan.groups) {
      const auto [at, added] =
          known.try_emplace({group.name, group.ranks}, static_cast<std::int32_t>(worlds_.size()));
      if (added) {
        World world{group.name, group.ranks, {}};
        for (const Rank rank : group.ranks) {
          const auto member = position_of.find(rank);
          if (member == position_of.end()) {
            throw InvalidInput(str("group ", group.name, " of rank ", plan.self, " has rank ", rank,
                                   ", whose plan is missing; give the plans of all members"));
          }
          world.positions.push_back(member->second);
        }
        worlds_.push_back(std::move(world));
        of_world.emplace_back();
      }
      worlds.push_back(at->second);
      indices.push_back(index_in_group(plan, static_cast<GroupId>(indices.size())));
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
        const auto members = worlds_[idx(world)].ranks.size();
        calls.push_back(static_cast<CallId>(calls_.size()));
        calls_.push_back({world, 0, static_cast<std::int32_t>(members), std::vector<Call::Member>(members)});
      }
      const CallId id = calls[sequence];
      parts_[p][idx(node)] = {id, indices[idx(group)]};
      calls_[idx(id)].members[idx(indices[idx(group)])].node = node;
    }
  }
}

const Calls::Traffic& Calls::traffic(std::size_t position, StepId step) {
  const auto [at, added] = traffic_[position].try_emplace(step);
  if (added) {
    const Plan& plan = programs_[position].plan();
    const StepRef ref = programs_[position].ref(step);
    const auto& exchange = std::get<Exchange>(std::get<Collective>(ref.step->work));
    at->second = {by_peer(exchange.sends, plan), by_peer(exchange.recvs, plan)};
  }
  return at->second;
}

}  // namespace cp::sim

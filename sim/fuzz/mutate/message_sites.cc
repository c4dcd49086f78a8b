// Peers, transfers, roots and groups, on one rank or on all of a collective.
#include <algorithm>

#include "shared/base/index.h"
#include "sim/fuzz/mutate/mutation_sites.h"

namespace cp::sim {
namespace {

struct Side {
  std::string_view name;
  std::vector<Transfer>* transfers;
};
std::vector<Side> sides(const Spot& spot) {
  Exchange* exchange = operation_of<Exchange>(*spot.step);
  if (exchange == nullptr) return {};
  return {{"sends", &exchange->sends}, {"recvs", &exchange->recvs}};
}

void swap_peers(Sites& sites, const Spot& spot) {
  for (const auto& [name, transfers] : sides(spot)) {
    for (std::size_t i = 0; i < transfers->size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        if ((*transfers)[i].peer == (*transfers)[j].peer) continue;
        sites.offer(spot, true, [name = name, transfers = transfers, i, j](Numbers&) {
          std::swap((*transfers)[i].peer, (*transfers)[j].peer);
          return str(name, " ", j, " and ", i, ", peers: ", (*transfers)[i].peer, " and ",
                     (*transfers)[j].peer, " -> ", (*transfers)[j].peer, " and ", (*transfers)[i].peer);
        });
      }
      std::vector<std::int32_t> others;
      for (std::int32_t peer = 0; peer < group_size(spot); ++peer) {
        if (peer != (*transfers)[i].peer && peer != own_index(spot)) others.push_back(peer);
      }
      if (others.empty()) continue;
      sites.offer(spot, true, [name = name, transfers = transfers, i, others](Numbers& draws) {
        const std::int32_t before = std::exchange((*transfers)[i].peer, draws.of(others));
        return str(name, " ", i, ", peer: ", before, " -> ", (*transfers)[i].peer);
      });
    }
  }
}

void drop_transfer(Sites& sites, const Spot& spot) {
  for (const auto& [name, transfers] : sides(spot)) {
    for (std::size_t i = 0; i < transfers->size(); ++i) {
      sites.offer(spot, false, [name = name, transfers = transfers, i](Numbers&) {
        const std::int32_t peer = (*transfers)[i].peer;
        transfers->erase(transfers->begin() + static_cast<std::ptrdiff_t>(i));
        return str(name, " ", i, " with peer ", peer, ": dropped");
      });
    }
  }
}

// ---- all ranks of one exchange ----

Exchange* exchange_of(const GroupMeeting& meeting, std::size_t member) {
  const Spot& spot = meeting.members[member];
  return spot.step == nullptr ? nullptr : operation_of<Exchange>(*spot.step);
}

// The receive that matches the sender's send number `number`.
Transfer* receive_of(const GroupMeeting& meeting, std::size_t sender, std::size_t number) {
  const std::vector<Transfer>& sends = exchange_of(meeting, sender)->sends;
  const std::int32_t peer = sends[number].peer;
  Exchange* receiver = exchange_of(meeting, idx(peer));
  if (receiver == nullptr) return nullptr;
  const auto earlier = std::count_if(sends.begin(), sends.begin() + static_cast<std::ptrdiff_t>(number),
                                     [peer](const Transfer& send) { return send.peer == peer; });
  auto left = earlier;
  for (Transfer& recv : receiver->recvs) {
    if (recv.peer == static_cast<std::int32_t>(sender) && left-- == 0) return &recv;
  }
  return nullptr;
}

template <class Change>
void each_transfer_everywhere(Sites& sites, const Change& change) {
  for (const GroupMeeting& meeting : meetings(sites.plans)) {
    for (std::size_t member = 0; member < meeting.members.size(); ++member) {
      const Exchange* exchange = exchange_of(meeting, member);
      for (std::size_t i = 0; exchange != nullptr && i < exchange->sends.size(); ++i)
        change(meeting, member, i);
    }
  }
}

// Both ends are dropped and the counts made again: otherwise the ranks would disagree, which is easy to find.
void drop_transfers(Sites& sites) {
  each_transfer_everywhere(sites, [&](const GroupMeeting& meeting, std::size_t member, std::size_t i) {
    if (receive_of(meeting, member, i) == nullptr) return;
    sites.offer(meeting.members[member], true, [meeting, member, i](Numbers&) {
      std::vector<Transfer>& sends = exchange_of(meeting, member)->sends;
      const std::int32_t peer = sends[i].peer;
      std::vector<Transfer>& recvs = exchange_of(meeting, idx(peer))->recvs;
      recvs.erase(recvs.begin() + (receive_of(meeting, member, i) - recvs.data()));
      sends.erase(sends.begin() + static_cast<std::ptrdiff_t>(i));
      count_again(meeting);
      return str("sends ", i, " to peer ", peer, ": dropped at both ends");
    });
  });
}

// At both ends, too. Their rows (of dimension 0) must have as many elements, so that the ends still agree.
void shorten_transfers(Sites& sites) {
  each_transfer_everywhere(sites, [&](const GroupMeeting& meeting, std::size_t member, std::size_t i) {
    const Transfer* recv = receive_of(meeting, member, i);
    const View& sent = exchange_of(meeting, member)->sends[i].view;
    if (recv == nullptr || sent.shape.empty() || recv->view.shape.empty() || sent.shape[0] < 2 ||
        sent.numel() / sent.shape[0] != recv->view.numel() / recv->view.shape[0]) {
      return;
    }
    sites.offer(meeting.members[member], true, [meeting, member, i](Numbers&) {
      Transfer* received = receive_of(meeting, member, i);
      Transfer& send = exchange_of(meeting, member)->sends[i];
      const std::int64_t before = send.view.shape[0];
      --send.view.shape[0], --received->view.shape[0];
      count_again(meeting);
      return str("sends ", i, " to peer ", send.peer, ", dimension 0 at both ends: ", before, " -> ",
                 before - 1);
    });
  });
}

bool sends_to_either(const GroupMeeting& meeting, std::int32_t a, std::int32_t b) {
  for (std::size_t i = 0; i < meeting.members.size(); ++i) {
    const Exchange* exchange = exchange_of(meeting, i);
    if (exchange == nullptr || i == idx(a) || i == idx(b)) continue;
    for (const Transfer& send : exchange->sends) {
      if (send.peer == a || send.peer == b) return true;
    }
  }
  return false;
}

// What others send to a goes to b, and what to b to a.
void swap_receivers(Sites& sites) {
  for (const GroupMeeting& meeting : meetings(sites.plans)) {
    const auto members = static_cast<std::int32_t>(meeting.members.size());
    for (std::int32_t a = 0; a < members; ++a) {
      for (std::int32_t b = a + 1; b < members; ++b) {
        const Exchange *first = exchange_of(meeting, idx(a)), *second = exchange_of(meeting, idx(b));
        if (first == nullptr || second == nullptr || first->recvs.size() != second->recvs.size() ||
            !sends_to_either(meeting, a, b))
          continue;
        sites.offer(meeting.members[idx(a)], true, [meeting, members, a, b](Numbers&) {
          for (std::int32_t i = 0; i < members; ++i) {
            Exchange* exchange = exchange_of(meeting, idx(i));
            if (exchange == nullptr || i == a || i == b) continue;
            for (Transfer& send : exchange->sends)
              send.peer = send.peer == a ? b : send.peer == b ? a : send.peer;
          }
          // Between a and b themselves all stays as it is.
          std::vector<Transfer>&x = exchange_of(meeting, idx(a))->recvs,
          &y = exchange_of(meeting, idx(b))->recvs;
          for (std::size_t i = 0; i < x.size(); ++i) {
            if (x[i].peer != b && y[i].peer != a) std::swap(x[i].peer, y[i].peer);
          }
          count_again(meeting);
          return str("on all ranks, receivers: ", a, " and ", b, " -> ", b, " and ", a);
        });
      }
    }
  }
}

// ---- roots and groups ----

void change_root(Sites& sites, const Spot& spot) {
  Broadcast* broadcast = operation_of<Broadcast>(*spot.step);
  if (broadcast == nullptr || group_size(spot) < 2) return;
  sites.offer(spot, false, [broadcast, n = group_size(spot)](Numbers& draws) {
    const std::int32_t before = broadcast->root;
    broadcast->root = (before + static_cast<std::int32_t>(draws.in(1, n - 1))) % n;
    return str("root: ", before, " -> ", broadcast->root);
  });
}

void change_roots(Sites& sites) {
  for (const GroupMeeting& meeting : meetings(sites.plans)) {
    const Spot first = meeting.first();
    if (operation_of<Broadcast>(*first.step) == nullptr || meeting.members.size() < 2) continue;
    sites.offer(first, true, [meeting, first](Numbers& draws) {
      const auto n = static_cast<std::int32_t>(meeting.members.size());
      const std::int32_t before = operation_of<Broadcast>(*first.step)->root;
      const std::int32_t root = (before + static_cast<std::int32_t>(draws.in(1, n - 1))) % n;
      for (const Spot& spot : meeting.members) {
        Broadcast* broadcast = spot.step == nullptr ? nullptr : operation_of<Broadcast>(*spot.step);
        if (broadcast == nullptr) continue;
        broadcast->root = root;
        if (is_absent(broadcast->in)) broadcast->in = broadcast->out;
      }
      return str("on all ranks, root: ", before, " -> ", root);
    });
  }
}

void change_group(Sites& sites, const Spot& spot) {
  Collective* collective = std::get_if<Collective>(&spot.step->work);
  const auto groups = static_cast<GroupId>(spot.plan->groups.size());
  if (collective == nullptr) return;
  for (GroupId group = 0; group < groups; ++group) {
    if (group == group_of(*collective)) continue;
    sites.offer(spot, false, [plan = spot.plan, collective, group](Numbers&) {
      const GroupId before = group_of(*collective);
      std::visit([group](auto& op) { op.group = group; }, *collective);
      return str("group: ", plan->groups[idx(before)].name, " -> ", plan->groups[idx(group)].name);
    });
  }
}

void change_members(Sites& sites) {
  sites.for_each_plan([&](const Spot& spot) {
    for (Group& group : spot.plan->groups) {
      const auto offer = [&](auto change) {
        sites.offer(spot, false, [&group, change](Numbers&) {
          const Group before = group;
          change(group);
          return str("group: ", before.name, "[", join(before.ranks), "] -> ", group.name, "[",
                     join(group.ranks), "]");
        });
      };
      if (group.ranks.size() >= 2) offer([](Group& it) { std::swap(it.ranks[0], it.ranks[1]); });
      offer([](Group& it) { it.ranks.pop_back(); });
      offer([](Group& it) { it.name += "'"; });
    }
  });
}

}  // namespace

void message_sites(Sites& sites, MutationKind kind) {
  switch (kind) {
    case MutationKind::swap_peers:
      return sites.for_each_step([&](const Spot& spot) { swap_peers(sites, spot); });
    case MutationKind::drop_transfer:
      return sites.for_each_step([&](const Spot& spot) { drop_transfer(sites, spot); });
    case MutationKind::change_root:
      return sites.for_each_step([&](const Spot& spot) { change_root(sites, spot); });
    case MutationKind::change_group:
      return sites.for_each_step([&](const Spot& spot) { change_group(sites, spot); });
    case MutationKind::swap_receivers:
      return swap_receivers(sites);
    case MutationKind::drop_transfer_everywhere:
      return drop_transfers(sites);
    case MutationKind::shorten_transfer_everywhere:
      return shorten_transfers(sites);
    case MutationKind::change_root_everywhere:
      return change_roots(sites);
    case MutationKind::change_members:
      return change_members(sites);
    default:
      return;
  }
}

}  // namespace cp::sim

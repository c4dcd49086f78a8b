#include "sim/fabric/deadlock.h"

#include <algorithm>

#include "shared/base/error.h"

namespace cp::sim {
namespace {

std::vector<Rank> missing_ranks(const Wait& wait) {
  std::vector<Rank> ranks;
  for (const std::int32_t index : wait.communicator->missing()) {
    ranks.push_back(wait.communicator->group().ranks[static_cast<std::size_t>(index)]);
  }
  return ranks;
}

// One wait of one rank.
struct Link {
  const RankWaits* rank = nullptr;
  const Wait* wait = nullptr;
  bool held_up = true;  // it keeps the rank from joining the collective that the link before waits in
  bool operator==(const Link& other) const { return wait == other.wait; }
};

// What keeps `rank` from joining a collective on `communicator`.
Link next_link(const RankWaits& rank, const Communicator* communicator) {
  for (const Wait& wait : rank.waits) {
    const auto& held = wait.holds_up;
    if (std::find(held.begin(), held.end(), communicator) != held.end()) return {&rank, &wait, true};
  }
  return {&rank, rank.waits.empty() ? nullptr : &rank.waits.front(), false};
}

std::string line(const Link& link) {
  if (link.wait == nullptr) return str("rank ", link.rank->rank, " has returned from its body");
  const std::string iteration = link.wait->iteration > 0 ? str(", iteration ", link.wait->iteration) : "";
  return str(to_string(link.rank->rank, *link.wait),
             link.held_up ? "" : ", and has not launched what is waited for", " [step ", link.wait->step,
             iteration, "]");
}

Dissent blame(const std::vector<Link>& chain, bool is_cycle) {
  if (!is_cycle) return {.ranks = {chain.back().rank->rank}};
  Dissent dissent;
  for (const Link& link : chain) {
    if (!link.held_up) dissent.ranks.push_back(link.rank->rank);
  }
  if (dissent.ranks.empty()) {
    for (const Link& link : chain) dissent.ranks.push_back(link.rank->rank);
  }
  std::sort(dissent.ranks.begin(), dissent.ranks.end());
  dissent.ranks.erase(std::unique(dissent.ranks.begin(), dissent.ranks.end()), dissent.ranks.end());
  dissent.is_tie = dissent.ranks.size() > 1;
  return dissent;
}

}  // namespace

std::string to_string(Rank rank, const Wait& wait) {
  const Communicator::Slot& slot = wait.communicator->slot(wait.index);
  const std::vector<Rank> missing = missing_ranks(wait);
  return str("rank ", rank, " waits in ", name(slot.call.operation), " #", slot.sequence, " on ",
             to_string(wait.communicator->group()), " (stream ", wait.stream, ") for ",
             missing.size() == 1 ? "rank " : "ranks ", ranks_text(missing));
}

DeadlockReport deadlock_report(std::span<const RankWaits> ranks) {
  const auto first =
      std::find_if(ranks.begin(), ranks.end(), [](const RankWaits& rank) { return !rank.waits.empty(); });
  CP_INVARIANT(first != ranks.end(), "a deadlock in which no rank waits");
  std::vector<Link> chain{{&*first, &first->waits.front(), true}};
  std::vector<Link>::iterator cycle;
  do {
    const Wait& wait = *chain.back().wait;
    const Rank missing = missing_ranks(wait).front();
    const Link next = next_link(ranks[static_cast<std::size_t>(missing)], wait.communicator);
    cycle = std::find(chain.begin(), chain.end(), next);
    if (cycle != chain.end() && !next.held_up) cycle->held_up = false;
    if (cycle == chain.end()) {
      chain.push_back(next);
      cycle = chain.end();
    }
  } while (cycle == chain.end() && chain.back().wait != nullptr);
  const bool is_cycle = cycle != chain.end();
  if (is_cycle) chain.erase(chain.begin(), cycle);

  std::vector<std::string> lines;
  lines.reserve(chain.size() + 1);
  for (const Link& link : chain) lines.push_back(line(link));
  lines.emplace_back("no order of ranks and streams could have ended, from the start on");
  std::vector<Rank> others;
  for (const RankWaits& rank : ranks) {
    const bool shown =
        std::any_of(chain.begin(), chain.end(), [&](const Link& link) { return link.rank == &rank; });
    if (!shown && !rank.waits.empty()) others.push_back(rank.rank);
  }
  DeadlockReport report;
  report.dissent = blame(chain, is_cycle);
  for (const Link& link : chain) {
    if (link.wait != nullptr) report.communicators.push_back(link.wait->communicator);
  }
  report.text = str(
      "no stream of any rank can advance; ", is_cycle ? "the cycle:\n  " : "the chain:\n  ",
      join(lines, "\n  "), others.empty() ? "" : str("\n  waiting as well: ranks ", ranks_text(others)),
      is_cycle ? "\nissue the collectives of groups that share ranks in the same order on all of them" : "");
  return report;
}

}  // namespace cp::sim

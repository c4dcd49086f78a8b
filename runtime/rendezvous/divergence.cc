#include "runtime/rendezvous/divergence.h"

#include <algorithm>
#include <limits>

#include "shared/base/text.h"

namespace cp::runtime {
namespace {

// How many points of a group are kept, the newest ones. Ranks are apart by at most the collectives that are
// in flight, far fewer than this. kMostGroupsOfJob bounds what clients can make the server keep. Both are
// chosen.
constexpr std::size_t kMostPoints = 512;
constexpr std::size_t kMostGroupsOfJob = 4096;

}  // namespace

void DivergenceCheck::add(Rank rank, const Progress& point, Clock::time_point now) {
  if (point.sequence < 0 || (groups_.size() >= kMostGroupsOfJob && !groups_.contains(point.group))) return;
  const auto [position, is_new] = groups_.try_emplace(point.group);
  Group& group = position->second;
  if (is_new) group.members = members_of(point.group).size();
  if (group.points.size() >= kMostPoints) {
    if (point.sequence < group.points.begin()->first) return;
    // What is undecided stays: it is the first that will be named.
    const auto oldest =
        std::ranges::find_if(group.points, [](const auto& p) { return !p.second.disagree_since; });
    if (oldest == group.points.end()) return;
    group.points.erase(oldest);
  }
  Point& here = group.points[point.sequence];
  here.said.insert_or_assign(rank, Said{point.digest, point.operation, point.step});
  const Digest& first = here.said.begin()->second.digest;
  const bool agree = std::ranges::all_of(here.said, [&](const auto& s) { return s.second.digest == first; });
  if (!agree && !here.disagree_since) here.disagree_since = now;
  if (agree && here.said.size() == group.members) group.agreed = std::max(group.agreed, point.sequence);
  const auto [latest, is_first] = group.latest.try_emplace(rank, point);
  if (!is_first && latest->second.sequence < point.sequence) latest->second = point;
  look_at_ends(point.group, group, now);
}

void DivergenceCheck::end(Rank rank, const std::vector<Progress>& last, Clock::time_point now) {
  for (const Progress& point : last) add(rank, point, now);
  ended_.insert(rank);
  for (auto& [name, group] : groups_) look_at_ends(name, group, now);
}

bool DivergenceCheck::all_ended_with(Rank rank) const {
  return std::ranges::all_of(groups_, [&](const auto& entry) {
    const auto& [name, group] = entry;
    if (!group.latest.contains(rank)) return true;
    return std::ranges::all_of(members_of(name), [&](Rank member) { return ended_.contains(member); });
  });
}

std::optional<Failure> DivergenceCheck::find(Clock::time_point now) const {
  for (const auto& [name, group] : groups_) {
    for (const auto& [sequence, point] : group.points) {
      if (!point.disagree_since) continue;
      if (const auto failure = judge(name, group, sequence, point, now)) return failure;
    }
    if (const auto failure = judge_ends(name, group, now)) return failure;
  }
  return std::nullopt;
}

std::optional<Failure> DivergenceCheck::judge(const std::string& name, const Group& group,
                                              std::int64_t sequence, const Point& point,
                                              Clock::time_point now) const {
  std::map<Digest, std::vector<Rank>> parties;
  for (const auto& [rank, said] : point.said) parties[said.digest].push_back(rank);
  const auto largest = std::ranges::max_element(parties, {}, [](const auto& p) { return p.second.size(); });
  const std::size_t votes = largest->second.size();
  const bool is_majority = group.members > 0 && 2 * votes > group.members;
  if (!is_majority && point.said.size() != group.members && now - *point.disagree_since < patience_)
    return std::nullopt;
  const bool is_tie =
      std::ranges::count_if(parties, [&](const auto& p) { return p.second.size() == votes; }) > 1;
  const Digest right = is_tie ? point.said.begin()->second.digest : largest->first;
  const auto differs =
      std::ranges::find_if(point.said, [&](const auto& s) { return s.second.digest != right; });

  const Said& wrong = differs->second;
  const Said& others = point.said.at(parties.at(right).front());
  const std::string right_ranks = ranks_text(parties.at(right));
  const std::string what = wrong.operation == others.operation
                               ? str(" differently from ", right_ranks,
                                     ": with other arguments, in another plan, or after other collectives")
                               : str(", but ", right_ranks, " began ", others.operation);
  const std::string before = group.agreed >= 0 && group.agreed < sequence
                                 ? str("; all agreed up to #", group.agreed)
                                 : std::string();
  return Failure{ErrorKind::collective_mismatch,
                 differs->first,
                 "",
                 0,
                 str("began ", wrong.operation, " #", sequence, " of ", name, what, before),
                 {name, sequence, wrong.operation, wrong.digest, wrong.step}};
}

// Whether a member has ended before a collective that another has begun.
void DivergenceCheck::look_at_ends(const std::string& name, Group& group, Clock::time_point now) const {
  if (group.ends_differ_since || ended_.empty() || group.latest.empty()) return;
  const auto furthest =
      std::ranges::max_element(group.latest, {}, [](const auto& latest) { return latest.second.sequence; });
  for (const Rank member : members_of(name)) {
    if (!ended_.contains(member)) continue;
    const auto own = group.latest.find(member);
    if (own == group.latest.end() || own->second.sequence < furthest->second.sequence) {
      group.ends_differ_since = now;
      return;
    }
  }
}

// Of the members that have ended too early and of those that went on, the larger party is right, or the one
// with the lowest rank.
std::optional<Failure> DivergenceCheck::judge_ends(const std::string& name, const Group& group,
                                                   Clock::time_point now) const {
  if (!group.ends_differ_since) return std::nullopt;
  const auto begun_by = [&](Rank member) {
    const auto own = group.latest.find(member);
    return own == group.latest.end() ? Progress{name, -1, "", {}, -1} : own->second;
  };
  const std::vector<Rank> members = members_of(name);
  Progress last{name, std::numeric_limits<std::int64_t>::max(), "", {}, -1};  // of who ended first
  for (const Rank member : members) {
    if (const Progress own = begun_by(member); ended_.contains(member) && own.sequence < last.sequence)
      last = own;
  }
  std::vector<Rank> ended, went_on;
  Progress next;
  for (const Rank member : members) {
    const Progress own = begun_by(member);
    if (own.sequence > last.sequence) {
      if (went_on.empty()) next = own;
      went_on.push_back(member);
    } else if (ended_.contains(member)) {
      ended.push_back(member);
    }
  }
  const std::size_t most = std::max(ended.size(), went_on.size());
  const bool is_decided = 2 * most > members.size() || ended.size() + went_on.size() == members.size() ||
                          now - *group.ends_differ_since >= patience_;
  if (!is_decided) return std::nullopt;
  const bool is_tie = ended.size() == went_on.size();
  const bool ended_is_right = is_tie ? ended.front() < went_on.front() : ended.size() > went_on.size();
  const std::string until = last.sequence < 0
                                ? str("before the first collective of ", name)
                                : str("after ", last.operation, " #", last.sequence, " of ", name);
  Failure failure{ErrorKind::collective_mismatch, ended.front(), "", 0, "", last};
  if (ended_is_right) {
    failure.rank = went_on.front();
    failure.progress = next;
    failure.message = str("began ", next.operation, " #", next.sequence, " of ", name, ", but ",
                          ranks_text(ended), " ended ", until);
  } else {
    failure.message = str("ended ", until, ", but ", ranks_text(went_on), " went on to #", next.sequence,
                          " (", next.operation, ")");
  }
  return failure;
}

}  // namespace cp::runtime

#include "runtime/rendezvous/divergence.h"

#include <algorithm>

#include "shared/base/text.h"

namespace cp::runtime {
namespace {

// Of each group, the newest; ranks are at most the collectives in flight apart.
constexpr std::size_t kMostPoints = 512;
constexpr std::size_t kMostGroups = 4096;

}  // namespace

void DivergenceCheck::add(Rank rank, const Progress& point, Clock::time_point now) {
  if (point.sequence < 0 || (groups_.size() >= kMostGroups && !groups_.contains(point.group))) return;
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
}

std::optional<Failure> DivergenceCheck::find(Clock::time_point now) const {
  for (const auto& [name, group] : groups_) {
    for (const auto& [sequence, point] : group.points) {
      if (!point.disagree_since) continue;
      if (const auto failure = judge(name, group, sequence, point, now)) return failure;
    }
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
  const std::string what = wrong.operation == others.operation
                               ? str("with other arguments, or after other collectives, than ")
                               : str("where ", others.operation, " was begun by ");
  const std::string before = group.agreed >= 0 && group.agreed < sequence
                                 ? str("; all agreed up to #", group.agreed)
                                 : std::string();
  return Failure{ExitCode::collective_mismatch,
                 differs->first,
                 "",
                 0,
                 str("began ", wrong.operation, " #", sequence, " of ", name, " ", what,
                     ranks_text(parties.at(right)), before),
                 {name, sequence, wrong.operation, wrong.digest, wrong.step}};
}

}  // namespace cp::runtime

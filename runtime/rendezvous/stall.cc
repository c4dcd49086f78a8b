#include "runtime/rendezvous/stall.h"

#include <algorithm>

#include "shared/base/text.h"

namespace cp::runtime {
namespace {

std::string text_of(const Activity::Collective& call) {
  return str(call.operation, " #", call.sequence, " of ", call.group);
}

std::string seconds_text(StallCheck::Clock::duration duration) {
  return str(std::chrono::duration_cast<std::chrono::seconds>(duration).count(), " s");
}

const char* s_of(const std::vector<Rank>& ranks) { return ranks.size() == 1 ? "s" : ""; }  // of its verb

}  // namespace

void StallCheck::add(Rank rank, const Activity& activity, Clock::time_point now) {
  const auto [known, is_new] = ranks_.try_emplace(rank, Known{activity, now, {}});
  if (is_new || known->second.activity == activity) return;
  known->second.activity = activity;
  known->second.since = now;
}

void StallCheck::begun(Rank rank, const Progress& latest, Clock::time_point now) {
  const auto known = ranks_.find(rank);
  if (known == ranks_.end() || known->second.latest == latest) return;
  known->second.latest = latest;
  known->second.since = now;
}

void StallCheck::forgive(Milliseconds gap) {
  for (auto& [rank, known] : ranks_) known.since += gap;
}

bool StallCheck::is_quiet(Rank rank, Clock::time_point now) const {
  const auto known = ranks_.find(rank);
  return known != ranks_.end() && now - known->second.since >= patience_;
}

std::vector<Rank> StallCheck::missing(const Call& call, const LastBegun& last_begun) const {
  std::vector<Rank> ranks;
  for (const Rank member : members_of(call.group)) {
    if (last_begun(member, call.group) < call.sequence) ranks.push_back(member);
  }
  return ranks;
}

bool StallCheck::can_go_on(const Call& call, const std::set<Rank>& stuck, const LastBegun& last_begun,
                           Clock::time_point now) const {
  const std::vector<Rank> late = missing(call, last_begun);
  if (!late.empty()) return std::ranges::none_of(late, [&](Rank rank) { return stuck.contains(rank); });
  const std::vector<Rank> members = members_of(call.group);
  return !std::ranges::all_of(members, [&](Rank rank) { return is_quiet(rank, now); });
}

// All that wait, less those that can go on, until none more can.
std::set<Rank> StallCheck::stuck(const LastBegun& last_begun, Clock::time_point now) const {
  std::set<Rank> left;
  for (const auto& [rank, known] : ranks_) {
    if (known.activity.waits && !known.activity.collectives.empty() && is_quiet(rank, now)) left.insert(rank);
  }
  bool changed = true;
  while (changed) {
    changed = std::erase_if(left, [&](Rank rank) {
                const std::vector<Call>& calls = ranks_.at(rank).activity.collectives;
                return std::ranges::any_of(
                    calls, [&](const Call& call) { return can_go_on(call, left, last_begun, now); });
              }) > 0;
  }
  return left;
}

std::optional<Failure> StallCheck::find(const LastBegun& last_begun, Clock::time_point now) const {
  const std::set<Rank> all = stuck(last_begun, now);
  return all.empty() ? find_computing(last_begun, now) : describe(all, last_begun);
}

// From the lowest rank on, each waits for one that is missing, until one comes again or misses nobody.
Failure StallCheck::describe(const std::set<Rank>& stuck, const LastBegun& last_begun) const {
  std::vector<Rank> path;
  std::vector<std::string> waits;
  Rank rank = *stuck.begin();
  while (std::ranges::find(path, rank) == path.end()) {
    path.push_back(rank);
    const Call& call = ranks_.at(rank).activity.collectives.front();
    const std::vector<Rank> late = missing(call, last_begun);
    const auto next = std::ranges::find_if(late, [&](Rank other) { return stuck.contains(other); });
    if (next == late.end()) {
      return {ErrorKind::timeout,
              rank,
              "",
              0,
              str("all ranks have begun ", text_of(call), ", and no payload has moved for ",
                  duration_text(patience_),
                  "; is the network between them up? If it is only slow, use a longer --timeout"),
              {call.group, call.sequence, call.operation, {}, -1}};
    }
    waits.push_back(str("rank ", rank, " waits in ", text_of(call), " for rank ", *next));
    rank = *next;
  }
  const auto first = std::ranges::find(path, rank) - path.begin();  // the path may lead into the cycle
  waits.erase(waits.begin(), waits.begin() + first);
  const Call& call = ranks_.at(rank).activity.collectives.front();
  return {ErrorKind::deadlock,
          rank,
          "",
          0,
          str("deadlock: ", join(waits, ", "), "; nothing has moved for ", duration_text(patience_),
              "; issue the collectives in the same order on all ranks"),
          {call.group, call.sequence, call.operation, {}, -1}};
}

std::vector<Rank> StallCheck::waiting_in(const Call& call) const {
  std::vector<Rank> all;
  for (const auto& [rank, known] : ranks_) {
    if (known.activity.waits &&
        std::ranges::find(known.activity.collectives, call) != known.activity.collectives.end())
      all.push_back(rank);
  }
  return all;
}

std::optional<Failure> StallCheck::find_computing(const LastBegun& last_begun, Clock::time_point now) const {
  if (compute_limit_.count() == 0) return std::nullopt;
  for (const auto& [rank, known] : ranks_) {
    if (!known.activity.waits || now - known.since < compute_limit_) continue;
    for (const Call& call : known.activity.collectives) {
      for (const Rank late : missing(call, last_begun)) {
        const auto other = ranks_.find(late);
        if (other == ranks_.end() || other->second.activity.waits ||
            now - other->second.since < compute_limit_)
          continue;
        const std::vector<Rank> waiting = waiting_in(call);
        return Failure{ErrorKind::timeout,
                       late,
                       "",
                       0,
                       str("has not joined ", text_of(call), " for ", duration_text(compute_limit_), "; ",
                           ranks_text(waiting), " wait", s_of(waiting),
                           ". It is alive: it computes, or it is stuck in its own code (--compute-timeout)"),
                       {}};
      }
    }
  }
  return std::nullopt;
}

std::vector<std::string> StallCheck::take_notes(const LastBegun& last_begun, Clock::time_point now) {
  std::vector<std::string> notes;
  for (const auto& [rank, known] : ranks_) {
    if (!known.activity.waits || !is_quiet(rank, now)) continue;
    for (const Call& call : known.activity.collectives) {
      std::vector<Rank> computing;
      Clock::time_point since = now;
      for (const Rank late : missing(call, last_begun)) {
        const auto other = ranks_.find(late);
        if (other == ranks_.end() || other->second.activity.waits) continue;
        computing.push_back(late);
        since = std::min(since, other->second.since);
      }
      if (computing.empty() || !noted_.insert(text_of(call)).second) continue;
      const std::vector<Rank> waiting = waiting_in(call);
      notes.push_back(str(ranks_text(waiting), " wait", s_of(waiting), " in ", text_of(call), " for ",
                          ranks_text(computing), ", which ", computing.size() == 1 ? "has" : "have",
                          " been computing for ", seconds_text(now - since)));
    }
  }
  return notes;
}

}  // namespace cp::runtime

#include "runtime/rendezvous/roster.h"

#include <algorithm>
#include <numeric>

#include "shared/base/text.h"

namespace cp::runtime {
namespace {

// How long a failure that blames a peer waits for a better cause, which may arrive after its consequence.
// Chosen: longer than a report takes over a network, and short for a person. If it is too short, the victim
// is named instead of the culprit.
constexpr std::chrono::milliseconds kSettleTime{300};
// How many groups of a rank are remembered. Chosen, to bound what a client can make the server keep.
constexpr std::size_t kMostGroupsOfRank = 1024;
// For the launcher of a lost rank to say how it ended. It sees the end at once, and waits a tenth of this for
// a better cause.
constexpr std::chrono::milliseconds kLaunchersWord{1'000};
constexpr std::size_t kMostRefusals = 8;  // how many a message lists; chosen

bool blames_a_peer(ErrorKind kind) { return kind == ErrorKind::peer_lost || kind == ErrorKind::timeout; }

}  // namespace

Roster::Roster(std::int32_t world_size, Milliseconds heartbeat_timeout, Milliseconds join_timeout)
    : members_(static_cast<std::size_t>(world_size)),
      heartbeat_timeout_(heartbeat_timeout),
      join_timeout_(join_timeout) {}

std::optional<std::string> Roster::refusal(Rank rank, std::int32_t size) const {
  if (size != world_size()) {
    return str("rank ", rank, " came with world size ", size, ", but this job has ", world_size(),
               "; start all ranks with the same world size");
  }
  if (rank < 0 || rank >= world_size()) {
    return str("rank ", rank, " is out of range: the world size is ", world_size(), ", so ranks are 0 to ",
               world_size() - 1);
  }
  const Member& known = member(rank);
  if (known.state == RankState::absent) return std::nullopt;
  const std::string who = str("host ", known.host, ", pid ", known.pid);
  switch (known.state) {
    case RankState::left:
      return str("rank ", rank, " has joined and left (", who, "); a rank can join once");
    case RankState::lost:
      return str("rank ", rank, " was lost (", who, "), and the job with it; start the job again");
    default:
      return str("rank ", rank, " has joined already (", who, "): two processes were given the same rank");
  }
}

void Roster::join(Rank rank, const std::string& host, std::int64_t pid, Clock::time_point now) {
  Member& joined = member(rank);
  joined.state = RankState::joined;
  joined.host = host;
  joined.pid = pid;
  joined.heard = now;
  if (!first_join_) first_join_ = now;
}

void Roster::heartbeat(Rank rank, Clock::time_point now) { member(rank).heard = now; }

void Roster::progress(Rank rank, const Progress& progress) {
  if (progress.sequence < 0) return;
  Member& known = member(rank);
  known.latest = progress;
  known.told = known.heard;
  if (known.groups.size() < kMostGroupsOfRank || known.groups.contains(progress.group))
    known.groups[progress.group] = progress;
}

void Roster::leave(Rank rank) { member(rank).state = RankState::left; }

Failure Roster::failure_of(Rank rank, ErrorKind kind, const std::string& message,
                           Clock::time_point now) const {
  const Member& known = member(rank);
  return {kind,
          rank,
          known.host,
          known.pid,
          message,
          known.latest,
          std::chrono::duration_cast<Milliseconds>(now - known.told)};
}

void Roster::report(Rank rank, ErrorKind kind, const std::string& message, Clock::time_point now) {
  if (member(rank).failed) return;
  member(rank).failed = true;
  Failure failure = failure_of(rank, kind, message, now);
  failure.progress_age = Milliseconds(0);  // it says first where it is
  if (blames_a_peer(kind)) {
    candidates_.push_back({failure, now + kSettleTime, false});
    promote(now);
  } else {
    decide(failure);
  }
}

void Roster::lose(Rank rank, ErrorKind kind, const std::string& message, Clock::time_point now) {
  Member& gone = member(rank);
  if (gone.state != RankState::joined) return;
  gone.state = RankState::lost;
  if (gone.failed) return;
  gone.failed = true;
  add_loss(failure_of(rank, kind, message, now), has_launcher(rank) ? now + kLaunchersWord : now);
  promote(now);
}

// In order of time, before all that is no loss.
void Roster::add_loss(Failure failure, Clock::time_point ready) {
  const auto behind = std::ranges::find_if(candidates_, [](const Candidate& c) { return !c.is_loss; });
  candidates_.insert(behind, {std::move(failure), ready, true});
}

// ---- launchers

bool Roster::has_launcher(Rank rank) const {
  return std::ranges::any_of(launchers_, [&](const auto& entry) {
    return entry.first <= rank && rank < entry.first + entry.second.count;
  });
}

std::optional<std::string> Roster::launcher_refusal(Rank first, std::int32_t count, std::int32_t size,
                                                    const std::string& host) const {
  if (size != world_size()) {
    return str("the launcher on host ", host, " came with world size ", size, ", but this job has ",
               world_size(), "; give all machines the same --nnodes, --nproc-per-node and scenario");
  }
  if (first < 0 || count < 1 || first > size - count) {
    return str("the launcher on host ", host, " came with ", count, " ranks from ", first,
               " on: the world size is ", size, ", so ranks are 0 to ", size - 1);
  }
  for (const auto& [other, known] : launchers_) {
    if (first < other + known.count && other < first + count) {
      return str("the launcher on host ", host, " came with ranks ", first, " to ", first + count - 1,
                 ", and host ", known.host, " (pid ", known.pid, ") has ranks ", other, " to ",
                 other + known.count - 1, "; give each machine a --node-rank of its own");
    }
  }
  return std::nullopt;
}

void Roster::launcher_joins(Rank first, std::int32_t count, const std::string& host, std::int64_t pid) {
  launchers_[first] = {count, host, pid, false};
  for (Rank rank = first; rank < first + count; ++rank) member(rank).launched = true;
}

std::optional<Rank> Roster::first_without_launcher() const {
  const auto missing = std::ranges::find(members_, false, &Member::launched);
  if (missing == members_.end()) return std::nullopt;
  return static_cast<Rank>(missing - members_.begin());
}

std::string Roster::refused_text() const {
  return refused_.empty() ? "" : str("; these were refused: ", cp::join(refused_, "; "));
}

Failure Roster::never_launched(Rank first) const {
  std::vector<Rank> missing;
  for (Rank rank = first; rank < world_size(); ++rank) {
    if (!member(rank).launched) missing.push_back(rank);
  }
  return {ErrorKind::rendezvous,
          first,
          "",
          0,
          str("no launcher has joined for ", ranks_text(missing), " of ", world_size(), " within ",
              duration_text(join_timeout_), "; start cprun on each machine, with a --node-rank of its own",
              refused_text()),
          {}};
}

bool Roster::is_all_done() const {
  return !first_without_launcher() && in_state(RankState::joined).empty() &&
         std::ranges::all_of(launchers_, [](const auto& entry) { return entry.second.done; });
}

void Roster::launcher_is_done(Rank first) {
  if (const auto known = launchers_.find(first); known != launchers_.end()) known->second.done = true;
}

void Roster::lose_launcher(Rank first, const std::string& message, Clock::time_point now) {
  const auto known = launchers_.find(first);
  if (known == launchers_.end() || known->second.done) return;
  const Launcher gone = known->second;
  launchers_.erase(known);
  std::vector<Rank> ranks;
  for (Rank rank = first; rank < first + gone.count; ++rank) {
    if (member(rank).state != RankState::left) ranks.push_back(rank);
  }
  if (ranks.empty()) return;
  add_loss({ErrorKind::peer_lost,
            ranks.front(),
            gone.host,
            gone.pid,
            str("the launcher of ", ranks_text(ranks), " is gone: ", message),
            {}},
           now);
  promote(now);
}

void Roster::note_refusal(const std::string& who) {
  if (refused_.size() < kMostRefusals && std::ranges::find(refused_, who) == refused_.end())
    refused_.push_back(who);
}

void Roster::add(Failure failure) {
  if (failure.rank >= 0 && failure.rank < world_size()) {
    Member& failed = member(failure.rank);
    failed.failed = true;
    if (failure.host.empty()) failure.host = failed.host;
    if (failure.pid == 0) failure.pid = failed.pid;
  }
  decide(std::move(failure));
}

void Roster::decide(Failure failure) {
  if (!cause_) {
    cause_ = std::move(failure);
    for (Candidate& candidate : candidates_) consequences_.push_back(std::move(candidate.failure));
    candidates_.clear();
  } else if (consequences_.size() < 4 * members_.size()) {
    consequences_.push_back(std::move(failure));
  }
}

void Roster::promote(Clock::time_point now) {
  const auto is_late = [&](Rank rank) {
    return is_watched(member(rank)) &&
           now - member(rank).heard > heartbeat_timeout_ * 3 / 8;  // of beats each quarter
  };
  bool others_late = false;
  for (Rank rank = 0; rank < world_size(); ++rank) others_late |= is_late(rank);
  if (others_late && !cause_) return;
  // A loss that waits for its launcher's word comes before what is ready.
  const auto ready = std::ranges::find_if(
      candidates_, [&](const Candidate& c) { return cause_ || c.is_loss || c.ready <= now; });
  if (ready == candidates_.end() || (!cause_ && ready->ready > now)) return;
  Failure failure = std::move(ready->failure);
  candidates_.erase(ready);
  decide(std::move(failure));
}

void Roster::check(Clock::time_point now) {
  check_silence(now);
  check_joins(now);
  promote(now);
}

void Roster::check_silence(Clock::time_point now) {
  std::vector<Rank> silent;
  for (Rank rank = 0; rank < world_size(); ++rank) {
    if (is_watched(member(rank)) && now - member(rank).heard > heartbeat_timeout_) silent.push_back(rank);
  }
  if (silent.empty()) return;
  const Rank first = *std::ranges::min_element(silent, {}, [&](Rank rank) { return member(rank).heard; });
  // A host that is cut off takes all its ranks at once, if not to the millisecond.
  std::vector<Rank> on_host;
  bool all_of_host = true, other_hosts = false;
  for (Rank rank = 0; rank < world_size(); ++rank) {
    if (member(rank).state != RankState::joined) continue;
    if (member(rank).host != member(first).host) {
      other_hosts = true;
    } else if (now - member(rank).heard > heartbeat_timeout_ * 3 / 4) {
      on_host.push_back(rank);
    } else {
      all_of_host = false;
    }
  }
  const std::string what =
      all_of_host && other_hosts
          ? str("host ", member(first).host, " with ", ranks_text(on_host), " is down or cut off")
          : "the process is stopped or its machine cannot be reached";
  const std::string message = str("no heartbeat for ", duration_text(heartbeat_timeout_), ": ", what);
  member(first).failed = true;
  member(first).state = RankState::lost;
  decide(failure_of(first, ErrorKind::peer_lost, message, now));
  for (const Rank rank : silent) {
    if (rank == first) continue;
    member(rank).failed = true;
    member(rank).state = RankState::lost;
    decide(failure_of(rank, ErrorKind::peer_lost, message, now));
  }
}

void Roster::check_joins(Clock::time_point now) {
  if (cause_ || !first_join_ || join_timeout_.count() == 0 || now - *first_join_ < join_timeout_) return;
  const std::vector<Rank> missing = in_state(RankState::absent);
  if (missing.empty()) return;
  decide({ErrorKind::rendezvous,
          missing.front(),
          "",
          0,
          str(ranks_text(missing), " of ", world_size(), missing.size() == 1 ? " has" : " have",
              " not joined within ", duration_text(join_timeout_), " of the first rank", refused_text()),
          {}});
}

void Roster::forgive(Milliseconds gap) {
  for (Member& known : members_) known.heard += gap;  // what it told is older all the same
  if (first_join_) *first_join_ += gap;
}

std::vector<RankStatus> Roster::status(Clock::time_point now) const {
  std::vector<RankStatus> all;
  for (Rank rank = 0; rank < world_size(); ++rank) {
    const Member& known = member(rank);
    const auto silent = std::chrono::duration_cast<Milliseconds>(now - known.heard);
    all.push_back({rank, known.state, known.host, known.pid,
                   known.state == RankState::absent ? Milliseconds(0) : silent, known.latest,
                   std::chrono::duration_cast<Milliseconds>(now - known.told), known.groups});
  }
  return all;
}

std::int64_t Roster::last_begun(Rank rank, const std::string& group) const {
  if (rank < 0 || rank >= world_size()) return -1;
  const auto known = member(rank).groups.find(group);
  return known == member(rank).groups.end() ? -1 : known->second.sequence;
}

std::vector<Rank> Roster::all() const {
  std::vector<Rank> ranks(members_.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

std::vector<Rank> Roster::in_state(RankState state) const {
  std::vector<Rank> ranks;
  for (Rank rank = 0; rank < world_size(); ++rank) {
    if (member(rank).state == state) ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace cp::runtime

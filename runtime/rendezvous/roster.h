// Roster: knows which ranks have joined, which are silent, and which failure was the first. It has no sockets
// and no clock of its own, so tests can play any order of events.
//
// One failure causes others: if a rank dies, the connections of its peers break; if a rank is stopped, its
// peers time out. So a failure that blames a peer (peer_lost or timeout, reported by a rank) waits for a
// better cause: always for a short while, and longer as long as some other rank is late with its heartbeat. A
// lost connection does not tell how the process ended, but the launcher of the process can. So the loss of a
// rank waits for the launcher's report, if the rank has a launcher.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/rendezvous/status.h"

namespace cp::runtime {

class Roster {
 public:
  using Clock = std::chrono::steady_clock;
  using Milliseconds = std::chrono::milliseconds;

  // `join_timeout` is how long all ranks may take to join, counted from the first one; 0 means for ever.
  Roster(std::int32_t world_size, Milliseconds heartbeat_timeout, Milliseconds join_timeout);

  std::int32_t world_size() const { return static_cast<std::int32_t>(members_.size()); }
  std::vector<Rank> all() const;  // ascending

  // Returns why the rank may not join, or nothing if it may.
  std::optional<std::string> refusal(Rank rank, std::int32_t world_size) const;
  void join(Rank rank, const std::string& host, std::int64_t pid, Clock::time_point now);
  void heartbeat(Rank rank, Clock::time_point now);
  void progress(Rank rank, const Progress& progress);
  void leave(Rank rank);

  // The same for a launcher that starts `count` ranks from `first` on, and will report how they end.
  std::optional<std::string> launcher_refusal(Rank first, std::int32_t count, std::int32_t world_size,
                                              const std::string& host) const;
  void launcher_joins(Rank first, std::int32_t count, const std::string& host, std::int64_t pid);
  // All of its ranks have ended well.
  void launcher_is_done(Rank first);
  // The launcher's connection is gone without a goodbye. Its ranks are then ended by their guardian process.
  void lose_launcher(Rank first, const std::string& message, Clock::time_point now);
  // Returns the first rank for which no launcher has come yet, if there is one.
  std::optional<Rank> first_without_launcher() const;
  Failure never_launched(Rank first) const;
  // Whether every rank has a launcher, all launchers are done, and no rank is here any more.
  bool is_all_done() const;
  // Notes somebody who has the token and may not join. If ranks do not join in time, the message names them.
  void note_refusal(const std::string& who);

  // The rank itself says that it failed.
  void report(Rank rank, ErrorKind kind, const std::string& message, Clock::time_point now);
  // The rank's connection is gone. Ignored for a rank that has left or has failed.
  void lose(Rank rank, ErrorKind kind, const std::string& message, Clock::time_point now);
  // Adds a failure that somebody else found and knows for sure. The rank's host and pid are filled in if the
  // failure does not have them.
  void add(Failure failure);
  // To be called often. Notices ranks that are silent for too long or have not joined in time.
  void check(Clock::time_point now);
  // This process itself was stopped for the time `gap`. No rank is blamed for being silent meanwhile.
  void forgive(Milliseconds gap);

  const std::optional<Failure>& cause() const { return cause_; }
  const std::vector<Failure>& consequences() const { return consequences_; }
  std::vector<RankStatus> status(Clock::time_point now) const;
  std::int64_t last_begun(Rank rank, const std::string& group) const;  // -1: none
  std::vector<Rank> in_state(RankState state) const;

 private:
  struct Member {
    RankState state = RankState::absent;
    bool failed = false;    // it said so
    bool launched = false;  // a launcher has come that starts it
    std::string host;
    std::int64_t pid = 0;
    Clock::time_point heard;
    Progress latest;
    Clock::time_point told;  // that
    std::map<std::string, Progress> groups;
  };
  struct Candidate {
    Failure failure;
    Clock::time_point ready;
    bool is_loss = false;  // better than what others say of their peers
  };
  struct Launcher {
    std::int32_t count = 0;
    std::string host;
    std::int64_t pid = 0;
    bool done = false;
  };

  Member& member(Rank rank) { return members_[static_cast<std::size_t>(rank)]; }
  const Member& member(Rank rank) const { return members_[static_cast<std::size_t>(rank)]; }
  bool is_watched(const Member& member) const { return member.state == RankState::joined && !member.failed; }
  Failure failure_of(Rank rank, ErrorKind kind, const std::string& message, Clock::time_point now) const;
  bool has_launcher(Rank rank) const;
  std::string refused_text() const;  // for the end of a message; empty where nobody was
  void add_loss(Failure failure, Clock::time_point ready);
  void decide(Failure failure);
  void promote(Clock::time_point now);
  void check_silence(Clock::time_point now);
  void check_joins(Clock::time_point now);

  std::vector<Member> members_;
  std::map<Rank, Launcher> launchers_;  // by their first rank
  std::vector<std::string> refused_;
  Milliseconds heartbeat_timeout_, join_timeout_;
  std::optional<Clock::time_point> first_join_;
  std::vector<Candidate> candidates_;
  std::optional<Failure> cause_;
  std::vector<Failure> consequences_;
};

}  // namespace cp::runtime

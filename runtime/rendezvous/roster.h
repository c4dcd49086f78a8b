// Roster: who has joined, who is silent, and which failure was the first. No sockets and no clock of its own.
//
// One failure makes others: a rank that dies breaks its peers' connections, a rank that is stopped makes them
// time out. So what says of itself that a peer is at fault (peer_lost and timeout, reported by a rank) waits
// for a better cause: for a short while always, and for as long as some other rank is late with its
// heartbeat. A lost connection does not tell how its process ended, and the launcher of the process does: a
// lost rank waits for the launcher's word, where it has one.
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

  // join_timeout: for all ranks to join, from the first one on; 0: for ever.
  Roster(std::int32_t world_size, Milliseconds heartbeat_timeout, Milliseconds join_timeout);

  std::int32_t world_size() const { return static_cast<std::int32_t>(members_.size()); }
  std::vector<Rank> all() const;  // ascending

  // Why the rank may not join; nothing when it may.
  std::optional<std::string> refusal(Rank rank, std::int32_t world_size) const;
  void join(Rank rank, const std::string& host, std::int64_t pid, Clock::time_point now);
  void heartbeat(Rank rank, Clock::time_point now);
  void progress(Rank rank, const Progress& progress);
  void leave(Rank rank);

  // A launcher with `count` ranks from `first` on, which tells how they end; as for ranks.
  std::optional<std::string> launcher_refusal(Rank first, std::int32_t count, std::int32_t world_size,
                                              const std::string& host) const;
  void launcher_joins(Rank first, std::int32_t count, const std::string& host, std::int64_t pid);
  // All of its ranks have ended well.
  void launcher_is_done(Rank first);
  // Without a goodbye: its ranks are ended by their guardian.
  void lose_launcher(Rank first, const std::string& message, Clock::time_point now);
  // The first rank that no launcher has come for yet; nothing where there is none.
  std::optional<Rank> first_without_launcher() const;
  Failure never_launched(Rank first) const;
  // Whether every rank has a launcher, all launchers are done, and no rank is here any more.
  bool is_all_done() const;
  // Somebody with the token who may not join: named where ranks do not join in time.
  void note_refusal(const std::string& who);

  // The rank itself says that it failed.
  void report(Rank rank, ErrorKind kind, const std::string& message, Clock::time_point now);
  // Its connection is gone. No news of a rank that has left or failed.
  void lose(Rank rank, ErrorKind kind, const std::string& message, Clock::time_point now);
  // Found by others: known for sure. What the rank's host and pid are is filled in where the failure does not
  // say; where it was, whoever found it knows better.
  void add(Failure failure);
  // To be called often: ranks that are silent for too long or have not joined in time.
  void check(Clock::time_point now);
  // This process itself was stopped for so long: nobody else is to blame.
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

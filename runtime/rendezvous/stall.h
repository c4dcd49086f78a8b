// StallCheck: ranks that wait for one another and can never go on, told apart from ranks that wait for one
// which computes.
//
// Ranks tell with their heartbeats whether they wait, and in which collectives (Activity). A rank that waits
// can go on when one of its collectives can: when all members that have not begun it can go on, and some one
// of them, or of those that have, has done anything lately. So a rank that computes for an hour keeps the
// others waiting and is no failure; two ranks that each wait for the other to begin another collective are
// one, and so is a collective that all have begun and in which no payload moves.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/rendezvous/status.h"

namespace cp::runtime {

class StallCheck {
 public:
  using Clock = std::chrono::steady_clock;
  using Milliseconds = std::chrono::milliseconds;

  // patience: how long nothing has to happen before a wait is judged. compute_limit: after so long a rank
  // that others wait for, and that is in no collective itself, counts as stuck in its own code; 0: never.
  explicit StallCheck(Milliseconds patience, Milliseconds compute_limit = Milliseconds(0))
      : patience_(patience), compute_limit_(compute_limit) {}

  // What the rank says of itself, each time that it does.
  void add(Rank rank, const Activity& activity, Clock::time_point now);
  // This process itself was stopped for so long, and has heard nothing.
  void forgive(Milliseconds gap);
  // It has left, or is lost.
  void forget(Rank rank) { ranks_.erase(rank); }

  // The number of the last collective of the group that the rank has begun; -1: none.
  using LastBegun = std::function<std::int64_t(Rank, const std::string& group)>;

  // The first stall, as a failure: deadlock of ranks that wait for one another, with the cycle; timeout of a
  // collective that all have begun, and of a rank beyond the compute limit.
  std::optional<Failure> find(const LastBegun& last_begun, Clock::time_point now) const;

  // Who waits for whom for longer than the patience, and it is no failure: each such wait once. "ranks 0, 2
  // wait in exchange #17 of cp[0,1,2] for rank 1, which computes since 31 s".
  std::vector<std::string> take_notes(const LastBegun& last_begun, Clock::time_point now);

 private:
  struct Known {
    Activity activity;
    Clock::time_point since;  // nothing has changed
  };
  using Call = Activity::Collective;

  bool is_quiet(Rank rank, Clock::time_point now) const;  // for the patience
  std::vector<Rank> missing(const Call& call, const LastBegun& last_begun) const;
  bool can_go_on(const Call& call, const std::set<Rank>& stuck, const LastBegun& last_begun,
                 Clock::time_point now) const;
  std::set<Rank> stuck(const LastBegun& last_begun, Clock::time_point now) const;
  Failure describe(const std::set<Rank>& stuck, const LastBegun& last_begun) const;
  std::optional<Failure> find_computing(const LastBegun& last_begun, Clock::time_point now) const;
  std::vector<Rank> waiting_in(const Call& call) const;

  const Milliseconds patience_, compute_limit_;
  std::map<Rank, Known> ranks_;
  std::set<std::string> noted_;
};

}  // namespace cp::runtime

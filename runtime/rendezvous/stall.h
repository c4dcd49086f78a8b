// StallCheck: finds ranks that wait for one another and can never go on, and tells them apart from ranks that
// wait for one which computes.
//
// With their heartbeats, ranks tell whether they wait, and in which collectives (Activity). A rank that waits
// can go on if one of its collectives can. A collective can go on if all members that have not begun it can
// go on, and if any of its members has done anything lately. For example:
//   - A rank that computes for an hour while others wait for it is no failure.
//   - Two ranks that each wait for the other to begin another collective are a failure.
//   - A collective that all members have begun, and in which no payload moves, is a failure.
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

  // `patience` is how long nothing must have happened before a wait is judged. If others wait for a rank that
  // is in no collective itself, it counts as stuck in its own code after `compute_limit`; 0 means never.
  explicit StallCheck(Milliseconds patience, Milliseconds compute_limit = Milliseconds(0))
      : patience_(patience), compute_limit_(compute_limit) {}

  // To be called with what a rank says about itself, each time that it does.
  void add(Rank rank, const Activity& activity, Clock::time_point now);
  // To be called with the latest collective that a rank has begun, each time that it says so: before its wait
  // in it is known, it is no longer one that has done nothing.
  void begun(Rank rank, const Progress& latest, Clock::time_point now);
  // This process itself was stopped for so long, and has heard nothing.
  void forgive(Milliseconds gap);
  // It has left, or is lost.
  void forget(Rank rank) { ranks_.erase(rank); }

  // Returns the number of the last collective of the group that the rank has begun, or -1 if it has begun
  // none.
  using LastBegun = std::function<std::int64_t(Rank, const std::string& group)>;

  // Returns the first stall as a failure: a deadlock, with its cycle, for ranks that wait for one another; a
  // timeout for a collective that all members have begun, and for a rank beyond the compute limit.
  std::optional<Failure> find(const LastBegun& last_begun, Clock::time_point now) const;

  // Who waits for whom for longer than the patience, and it is no failure: each such wait once. "ranks 0, 2
  // wait in exchange #17 of cp[0,1,2] for rank 1, which computes since 31 s".
  std::vector<std::string> take_notes(const LastBegun& last_begun, Clock::time_point now);

 private:
  struct Known {
    Activity activity;
    Clock::time_point since;  // nothing has changed
    Progress latest;
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

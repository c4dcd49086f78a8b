// DivergenceCheck: do all ranks run the same collectives? Compares what ranks say of equal (group, sequence
// number), and after how many they end.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/rendezvous/status.h"

namespace cp::runtime {

class DivergenceCheck {
 public:
  using Clock = std::chrono::steady_clock;

  // patience: how long a disagreement without a majority waits for the other members of the group.
  explicit DivergenceCheck(std::chrono::milliseconds patience) : patience_(patience) {}

  // A collective that the rank has begun. Digests are of all operations so far, so that later points differ
  // as well.
  void add(Rank rank, const Progress& point, Clock::time_point now);

  // The rank begins no further collective; `last`: of each group that it has used.
  void end(Rank rank, const std::vector<Progress>& last, Clock::time_point now);
  // Whether all members of the groups that the rank has used have ended too.
  bool all_ended_with(Rank rank) const;

  // The first disagreement, as a failure of the rank that differs, collective_mismatch: from most members of
  // the group, or, where all have spoken or patience has ended, from those that are with the lowest rank.
  // A rank that has ended where others began one more is such a disagreement, too.
  std::optional<Failure> find(Clock::time_point now) const;

 private:
  struct Said {
    Digest digest;
    std::string operation;
    std::int64_t step = -1;
  };
  struct Point {
    std::map<Rank, Said> said;
    std::optional<Clock::time_point> disagree_since;
  };
  struct Group {
    std::size_t members = 0;  // 0: not known
    std::map<std::int64_t, Point> points;
    std::int64_t agreed = -1;  // the last on which all members agreed
    std::map<Rank, Progress> latest;
    std::optional<Clock::time_point> ends_differ_since;
  };
  void look_at_ends(const std::string& name, Group& group, Clock::time_point now) const;
  std::optional<Failure> judge(const std::string& name, const Group& group, std::int64_t sequence,
                               const Point& point, Clock::time_point now) const;
  std::optional<Failure> judge_ends(const std::string& name, const Group& group, Clock::time_point now) const;

  std::chrono::milliseconds patience_;
  std::map<std::string, Group> groups_;
  std::set<Rank> ended_;
};

}  // namespace cp::runtime

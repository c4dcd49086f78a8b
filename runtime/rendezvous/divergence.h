// DivergenceCheck: finds out whether all ranks run the same collectives. It compares what different ranks say
// about the same collective, which is named by its group and sequence number, and after how many collectives
// they end.
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

  // `patience` is how long a disagreement without a majority waits for the other members of the group to
  // speak.
  explicit DivergenceCheck(std::chrono::milliseconds patience) : patience_(patience) {}

  // The rank has begun a collective. Its digest covers all operations so far, so after a difference all later
  // points differ too, and it is enough that ranks can be compared at any later point.
  void add(Rank rank, const Progress& point, Clock::time_point now);

  // The rank will begin no further collective. `last` holds the last one of each group that it has used.
  void end(Rank rank, const std::vector<Progress>& last, Clock::time_point now);
  // True if all members of all groups that the rank has used have ended too.
  bool all_ended_with(Rank rank) const;

  // Returns the first disagreement, as a failure (collective_mismatch) of the rank that differs from most
  // members of the group. If there is no majority, it waits until all have spoken or the patience has ended;
  // then the rank is blamed that differs from the lowest rank. It is also a disagreement if a rank has ended
  // and others began one collective more.
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

// DivergenceCheck: do all ranks run the same collectives? Compares what ranks say of equal (group, sequence number).
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "runtime/rendezvous/status.h"

namespace cp::runtime {

class DivergenceCheck {
 public:
  using Clock = std::chrono::steady_clock;

  // patience: how long a disagreement without a majority waits for the other members of the group.
  explicit DivergenceCheck(std::chrono::milliseconds patience) : patience_(patience) {}

  // A collective that the rank has begun. Digests are of all operations so far, so that later points differ as well.
  void add(Rank rank, const Progress& point, Clock::time_point now);

  // The first disagreement, as a failure of the rank that differs (code 10): from most members of the group, or, where all have
  // spoken or patience has ended, from those that are with the lowest rank.
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
  };
  std::optional<Failure> judge(const std::string& name, const Group& group, std::int64_t sequence,
                               const Point& point, Clock::time_point now) const;

  std::chrono::milliseconds patience_;
  std::map<std::string, Group> groups_;
};

}  // namespace cp::runtime

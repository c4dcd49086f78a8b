// Calls: the collectives of all ranks, matched. The n-th collective of a group on each of its members is one
// call. In a folded world (fold.h), groups that become one another by shifting share one call, and all ranks
// that one rank stands for are one member of it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "sim/cost/timeline/fold.h"
#include "sim/cost/timeline/program.h"

namespace cp::sim {

using CallId = std::int32_t;

// The bytes to or from a peer; several transfers of one exchange are added up.
struct PeerBytes {
  Rank peer = 0;
  std::int64_t bytes = 0;
};

struct TimedCall {
  struct Member {
    NodeId node = -1;
    bool arrived = false;
    double arrived_ns = 0;
    std::int32_t open = 0;  // how many of its transfers have not ended
  };
  std::int32_t group = 0;       // of Calls
  std::int32_t open = 0;        // flows that have not ended, of a collective that is no Exchange
  std::int32_t missing = 0;     // members that have not arrived
  std::vector<Member> members;  // as in Calls::World::positions
};

class Calls {
 public:
  // By rank position: the programs' order.
  Calls(const std::vector<Program>& programs, const Fold& fold);

  struct World {
    std::string name;
    std::vector<Rank> ranks;
    std::vector<std::int32_t> positions;  // of the members' programs, each once
    std::vector<std::int32_t> member_of;  // by position; -1: none
  };

  // The part of one rank in a call.
  struct Part {
    CallId call = -1;  // -1 for a kernel
    std::int32_t member = 0;
  };
  Part part(std::size_t position, NodeId node) const {
    return parts_[position][static_cast<std::size_t>(node)];
  }
  TimedCall& call(CallId id) { return calls_[static_cast<std::size_t>(id)]; }
  // The position of the program that stands for a rank.
  std::size_t position(Rank rank) const {
    return static_cast<std::size_t>(position_of_.at(fold_.representative(rank)));
  }
  const World& world(const TimedCall& call) const { return worlds_[static_cast<std::size_t>(call.group)]; }

  // What an Exchange moves, seen from one rank.
  struct Traffic {
    std::vector<PeerBytes> sends, recvs;
  };
  const Traffic& traffic(std::size_t position, StepId step);

 private:
  World make_world(const Group& group, Rank self) const;

  const std::vector<Program>& programs_;
  const Fold fold_;
  std::map<Rank, std::int32_t> position_of_;
  std::vector<World> worlds_;
  std::vector<TimedCall> calls_;
  std::vector<std::vector<Part>> parts_;            // by position, node
  std::vector<std::map<StepId, Traffic>> traffic_;  // by position
};

}  // namespace cp::sim

// NcclAgreement: what the members of a plan's groups tell one another while they prepare it.
//
// Ranks prepare unevenly: one has a graph to build, which takes a second, and another has dozens. So they
// meet before they connect a group, and again when their kernels are ready: nobody connects or launches while
// another one is late, and no collective's time counts before all can take part. Without NcclOptions::agree
// they do not meet.
//
// All members of a group call these functions in one order, as they prepare plans, and go through the groups
// of a plan in the order of the groups' names. So no two of them can wait for each other.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "shared/plan/plan.h"

namespace cp::runtime {

class NcclAgreement {
 public:
  // NcclOptions::agree; may be empty.
  using Agree =
      std::function<std::vector<std::string>(const Group&, std::int64_t number, const std::string& own)>;
  NcclAgreement(Rank rank, Agree agree) : rank_(rank), agree_(std::move(agree)) {}

  // Whether ranks meet.
  explicit operator bool() const { return static_cast<bool>(agree_); }

  struct Met {
    bool all_are_connected = false;        // all members have a communicator of the group
    std::chrono::milliseconds longest{0};  // of the members' planned times
  };
  // Before the group connects: waits for its members. Throws what `agree` throws.
  Met meet(const Group& group, bool is_connected, std::chrono::milliseconds planned);

  // When this rank can launch, or cannot for the reason `failure` (empty if it can): waits until the members
  // of all groups have got as far. Throws PeerLost, with the reason, if another rank cannot, and what `agree`
  // throws.
  void ready(const std::vector<Group>& groups, const std::string& failure);

 private:
  std::vector<std::string> tell(const Group& group, const std::string& own);

  Rank rank_;
  Agree agree_;
  std::map<std::string, std::int64_t> numbers_;  // of the next meeting, by group
};

// The groups by canonical_name(), which is their order on all ranks.
std::map<std::string, Group> by_name(const std::vector<Group>& groups);

}  // namespace cp::runtime

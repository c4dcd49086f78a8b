// How many file descriptors NCCL takes: each communicator has sockets of its own. Where a process may not
// open as many, NCCL only says "unhandled system error"; NcclDescriptors says it before, with the numbers.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "shared/plan/plan.h"

namespace cp::runtime {

// Estimates for a communicator, from the sources of NCCL 2.28 and with its defaults; never measured. They are
// meant to be enough.
//   kNcclDescriptors           of each: 10 of the bootstrap (its listeners, the ring's two neighbours, the
//                              thread that serves the proxy, events), and rings and trees over sockets: 2
//                              channels, each with 2 connections of the ring and 4 of a tree, of 2 sockets
//                              (data and control)
//   kNcclDescriptorsOfPeer     of each other rank that it reaches over a network: 2 channels of transfers, to
//                              and from it, of 2 sockets
//   kNcclDescriptorsBeside     of each other rank of the same host: what asks its proxy, and what it asks
inline constexpr std::int64_t kNcclDescriptors = 34, kNcclDescriptorsOfPeer = 8, kNcclDescriptorsBeside = 2;

// What this process may open: how many it has open now, the limit, and how far it may raise that itself.
struct DescriptorLimits {
  std::int64_t open = 0, soft = 0, hard = 0;
};
DescriptorLimits descriptor_limits();
// Raises the soft limit of this process (RLIMIT_NOFILE). Nothing happens where the system refuses. A program
// that uses select() cannot use descriptors above 1,023.
void raise_descriptor_limit(std::int64_t soft);

// The descriptors of one rank's communicators. `here` and `each_is_a_host` as for NcclPools.
class NcclDescriptors {
 public:
  NcclDescriptors(std::vector<Rank> here, bool each_is_a_host)
      : here_(std::move(here)), each_is_a_host_(each_is_a_host) {}

  // Groups that are about to connect; those that were added before are connected. Returns the soft limit that
  // this takes, which may be above limits.soft. Throws InvalidInput where it is above limits.hard; the groups
  // are not added then. limits.open counts only while there are no groups: later on it has theirs, too.
  std::int64_t add(const std::vector<Group>& groups, const DescriptorLimits& limits);
  void remove(const Group& group);  // its communicator was given back
  std::int64_t count() const { return count_; }

 private:
  std::int64_t descriptors_of(const Group& group) const;

  std::vector<Rank> here_;
  bool each_is_a_host_;
  std::map<std::string, std::int64_t> added_;  // by group
  std::int64_t count_ = 0, open_before_ = 0;
};

}  // namespace cp::runtime

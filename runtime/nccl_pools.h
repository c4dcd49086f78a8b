// How much of /dev/shm NCCL takes. For each communicator over which a rank sends or receives through a
// network (sockets included), the rank's process allocates a pool there, in full at the first connection
// (ncclProxyOpsPool, in NCCL 2.28). Containers have 64 MiB of /dev/shm by default. If it is too little, NCCL
// only says "unhandled system error"; NcclPools says it before, with the numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shared/plan/plan.h"

namespace cp::runtime {

inline constexpr std::int64_t kNcclPoolBytes =
    34'213'888;  // 147,456 operations of 232 bytes and their heads, in pages

// Bytes of /dev/shm, taken or not; nothing where there is no limit, or no such file system.
std::optional<std::int64_t> shared_memory_bytes();

// The pools on a machine for the groups that one of its ranks is in. They are the fewest that there can be:
// pools of groups that this rank has no part in come on top.
class NcclPools {
 public:
  // `here`: the ranks of this machine. Without `each_is_a_host`, where ranks that share a GPU are hosts of
  // their own, groups within the machine need none and others one at least.
  NcclPools(std::vector<Rank> here, bool each_is_a_host)
      : here_(std::move(here)), each_is_a_host_(each_is_a_host) {}

  // Groups of a plan that is about to connect them; those that were added before are connected. Throws
  // InvalidInput where the pools of all of them are more than `shared_memory`; they are not added then.
  void add(const std::vector<Group>& groups, std::optional<std::int64_t> shared_memory);
  // The group's communicator was given back.
  void remove(const Group& group);
  std::int64_t count() const { return count_; }

 private:
  std::int64_t pools_of(const Group& group) const;

  std::vector<Rank> here_;
  bool each_is_a_host_;
  std::set<std::string> added_;
  std::int64_t count_ = 0;
};

// What to do about an error of NCCL's whose words are about shared memory; empty for another. For
// nccl_error.cc, where these words enter.
std::string_view shared_memory_advice(std::string_view words);

}  // namespace cp::runtime

#include "runtime/nccl_pools.h"

#include <algorithm>
#include <sys/statvfs.h>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/plan/canonical.h"

namespace cp::runtime {
namespace {

constexpr const char* kSharedMemory = "/dev/shm";

}  // namespace

std::optional<std::int64_t> shared_memory_bytes() {
  struct statvfs system = {};
  if (::statvfs(kSharedMemory, &system) != 0 || system.f_blocks == 0)
    return std::nullopt;  // 0: a tmpfs without a limit
  return static_cast<std::int64_t>(system.f_blocks * system.f_frsize);
}

std::int64_t NcclPools::pools_of(const Group& group) const {
  const std::int64_t members = std::ranges::count_if(
      group.ranks, [this](Rank rank) { return std::ranges::find(here_, rank) != here_.end(); });
  if (group.ranks.size() < 2 || members == 0) return 0;
  if (each_is_a_host_) return members;
  return members < std::ssize(group.ranks) ? 1 : 0;
}

void NcclPools::add(const std::vector<Group>& groups, std::optional<std::int64_t> shared_memory) {
  std::set<std::string> added = added_;
  std::int64_t count = count_;
  for (const Group& group : groups) {
    if (added.insert(canonical_name(group)).second) count += pools_of(group);
  }
  const std::int64_t needed = count * kNcclPoolBytes;
  if (!shared_memory || needed <= *shared_memory) {
    added_ = std::move(added), count_ = count;
    return;
  }
  throw InvalidInput(
      str("NCCL needs ", human_bytes(needed), " of ", kSharedMemory, " on this machine, which has ",
          human_bytes(*shared_memory), ": each rank here takes ", human_bytes(kNcclPoolBytes),
          " for each of its groups that talks over sockets or a network, which makes ", count,
          " times as much; give a container more with docker run --shm-size 2g, or --ipc host"));
}

void NcclPools::remove(const Group& group) {
  if (added_.erase(canonical_name(group)) > 0) count_ -= pools_of(group);
}

// NCCL has one result, ncclSystemError, for all that the system refuses. Its sentence, of shmutils.cc in
// 2.28: "Error while creating shared memory segment /dev/shm/nccl-ZQXkWv (size 34210176), error: No space
// left on device (28)".
std::string_view shared_memory_advice(std::string_view words) {
  if (words.find(kSharedMemory) == std::string_view::npos &&
      words.find("shared memory") == std::string_view::npos)
    return "";
  return "if /dev/shm is full, give the container more of it with docker run --shm-size 2g, or "
         "--ipc host";
}

}  // namespace cp::runtime

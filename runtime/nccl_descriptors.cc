#include "runtime/nccl_descriptors.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <sys/resource.h>
#include <system_error>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/plan/canonical.h"

namespace cp::runtime {
namespace {

// Of the rest of the program, which opens files while communicators connect. Chosen.
constexpr std::int64_t kOfOthers = 64;

std::int64_t as_int(rlim_t limit) {
  constexpr rlim_t kMost = std::int64_t{1} << 40;  // where there is none: RLIM_INFINITY
  return static_cast<std::int64_t>(std::min(limit, kMost));
}

}  // namespace

DescriptorLimits descriptor_limits() {
  DescriptorLimits limits;
  rlimit both = {};
  if (::getrlimit(RLIMIT_NOFILE, &both) != 0) return {0, as_int(RLIM_INFINITY), as_int(RLIM_INFINITY)};
  limits.soft = as_int(both.rlim_cur), limits.hard = as_int(both.rlim_max);
  std::error_code error;
  const std::filesystem::directory_iterator all("/proc/self/fd", error);
  if (!error) limits.open = std::distance(begin(all), end(all)) - 1;  // less the one that lists them
  return limits;
}

void raise_descriptor_limit(std::int64_t soft) {
  rlimit both = {};
  if (::getrlimit(RLIMIT_NOFILE, &both) != 0 || as_int(both.rlim_cur) >= soft) return;
  both.rlim_cur = std::min(both.rlim_max, static_cast<rlim_t>(soft));
  static_cast<void>(::setrlimit(RLIMIT_NOFILE, &both));
}

std::int64_t NcclDescriptors::descriptors_of(const Group& group) const {
  if (group.ranks.size() < 2) return 0;
  const auto peers = std::ssize(group.ranks) - 1;
  const auto beside = each_is_a_host_ ? 0 : std::ranges::count_if(group.ranks, [this](Rank rank) {
                                              return std::ranges::find(here_, rank) != here_.end();
                                            }) - 1;
  return kNcclDescriptors + std::max<std::int64_t>(0, beside) * kNcclDescriptorsBeside +
         (peers - std::max<std::int64_t>(0, beside)) * kNcclDescriptorsOfPeer;
}

std::int64_t NcclDescriptors::add(const std::vector<Group>& groups, const DescriptorLimits& limits) {
  std::map<std::string, std::int64_t> added = added_;
  std::int64_t count = count_;
  for (const Group& group : groups) {
    const std::int64_t own = descriptors_of(group);
    if (added.emplace(canonical_name(group), own).second) count += own;
  }
  if (count == count_) {
    added_ = std::move(added);
    return limits.soft;
  }
  const std::int64_t open = count_ == 0 ? limits.open : open_before_;
  const std::int64_t needed = open + count + kOfOthers;
  if (needed > limits.hard) {
    throw InvalidInput(str("NCCL needs some ", count, " file descriptors for this rank's ", added.size(),
                           " groups, beside the ", open, " that are open, and this process may open ",
                           limits.hard, "; raise that with ulimit -Hn ", needed,
                           ", or give a container docker run --ulimit nofile=", needed));
  }
  added_ = std::move(added), count_ = count, open_before_ = open;
  return std::max(limits.soft, needed);
}

void NcclDescriptors::remove(const Group& group) {
  const auto found = added_.find(canonical_name(group));
  if (found == added_.end()) return;
  count_ -= found->second;
  added_.erase(found);
}

}  // namespace cp::runtime

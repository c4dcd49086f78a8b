#include "runtime/nccl/nccl_agreement.h"

#include <algorithm>
#include <cstddef>
#include <string_view>

#include "runtime/errors.h"
#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/plan/canonical.h"

namespace cp::runtime {
namespace {

constexpr std::string_view kConnected = "connected ", kMissing = "missing ";

}  // namespace

std::map<std::string, Group> by_name(const std::vector<Group>& groups) {
  std::map<std::string, Group> named;
  for (const Group& group : groups) named.emplace(canonical_name(group), group);
  return named;
}

std::vector<std::string> NcclAgreement::tell(const Group& group, const std::string& own) {
  std::vector<std::string> told = agree_(group, numbers_[canonical_name(group)]++, own);
  CP_INVARIANT(told.size() == group.ranks.size(), told.size(), " answers of ", group.ranks.size(), " ranks");
  return told;
}

NcclAgreement::Met NcclAgreement::meet(const Group& group, bool is_connected,
                                       std::chrono::milliseconds planned) {
  if (!agree_ || group.ranks.size() < 2) return {is_connected, planned};
  Met met{true, planned};
  for (const std::string& text : tell(group, str(is_connected ? kConnected : kMissing, planned.count()))) {
    const bool connected = text.starts_with(kConnected);
    const std::string_view time =
        std::string_view(text).substr(std::min(text.size(), (connected ? kConnected : kMissing).size()));
    met.all_are_connected = met.all_are_connected && connected;
    met.longest = std::max(met.longest, std::chrono::milliseconds(parse_int(time, "planned time")));
  }
  return met;
}

void NcclAgreement::ready(const std::vector<Group>& groups, const std::string& failure) {
  if (!agree_) return;
  std::string first;
  for (const auto& [name, group] : by_name(groups)) {
    if (group.ranks.size() < 2) continue;
    const std::vector<std::string> told = tell(group, failure);
    for (std::size_t i = 0; i < told.size(); ++i) {
      if (first.empty() && !told[i].empty() && group.ranks[i] != rank_)
        first = str("rank ", group.ranks[i], " cannot prepare its plan: ", told[i]);
    }
  }
  if (!first.empty()) throw PeerLost(first, {.operation = "prepare", .rank = rank_});
}

}  // namespace cp::runtime

#include "shared/transformer/mixer_plan_cache.h"

#include <algorithm>
#include <numeric>

#include "shared/base/error.h"

namespace cp {

// Plans are made for ranks 0 .. n-1 and take the names of the request's ranks when they are asked for:
// layouts that place the same mixer on other ranks share them.
template <class Request, class Pass, class Make>
const Plan& MixerPlanCache::get(Hasher key, const Request& request, Pass pass, Rank self,
                                const Target& target, const Make& make) {
  const auto at = std::find(request.ranks.begin(), request.ranks.end(), self);
  if (at == request.ranks.end()) {
    throw InvalidInput(str("rank ", self, " is not one of the ", request.ranks.size(), " cp ranks"));
  }
  const auto index = static_cast<Rank>(at - request.ranks.begin());
  key.add(static_cast<int>(pass)).add(index).add(request.ranks.size()).add(request.keep_for_backward);
  key.add(std::string_view(target.name));
  hash(key, request.problem);
  hash(key, request.strategy);
  const Digest digest = key.digest();
  auto found = plans_.find(digest);
  if (found == plans_.end()) {
    if (plans_.size() >= max_plans_) plans_.clear();
    Request numbered = request;
    std::iota(numbered.ranks.begin(), numbered.ranks.end(), 0);
    Plan plan = make(numbered, pass, index, target);
    std::vector<Group> groups = plan.groups;
    found = plans_.emplace(digest, Entry{std::move(plan), std::move(groups)}).first;
  }
  Entry& entry = found->second;
  entry.plan.self = self;
  for (std::size_t g = 0; g < entry.groups.size(); ++g) {
    for (std::size_t i = 0; i < entry.groups[g].ranks.size(); ++i) {
      entry.plan.groups[g].ranks[i] = request.ranks[static_cast<std::size_t>(entry.groups[g].ranks[i])];
    }
  }
  return entry.plan;
}

const Plan& MixerPlanCache::get(const AttentionRequest& request, AttentionPass pass, Rank self,
                                const Target& target) {
  Hasher key;
  key.add(std::string_view("attention")).add(name(request.options.lse));
  key.add(to_string(request.options.gradients));
  return get(key, request, pass, self, target, attention_plan);
}

const Plan& MixerPlanCache::get(const RecurrenceRequest& request, RecurrencePass pass, Rank self,
                                const Target& target) {
  Hasher key;
  key.add(std::string_view("recurrence"));
  return get(key, request, pass, self, target, recurrence_plan);
}

}  // namespace cp

// MixerPlanCache keeps plans of attention and of recurrences, which plans of steps are spliced from.
#pragma once

#include <cstddef>
#include <map>
#include <vector>

#include "shared/base/digest.h"
#include "shared/context_parallel/attention_plan.h"
#include "shared/plan/plan.h"
#include "shared/recurrence/recurrence_plan.h"

namespace cp {

// Keeps plans of attention and of recurrences by request, pass and index of the rank, since most steps of a
// search share a few. It is bounded by `max_plans` (256 is chosen: too few only means that plans are made
// again). The caller owns it and uses it from one thread. A plan equals that of attention_plan() or
// recurrence_plan() except for its digest of inputs, and stays valid until the next call of get().
class MixerPlanCache {
 public:
  explicit MixerPlanCache(std::size_t max_plans = 256) : max_plans_(max_plans) {}
  const Plan& get(const AttentionRequest& request, AttentionPass pass, Rank self, const Target& target);
  const Plan& get(const RecurrenceRequest& request, RecurrencePass pass, Rank self, const Target& target);

 private:
  template <class Request, class Pass, class Make>
  const Plan& get(Hasher key, const Request& request, Pass pass, Rank self, const Target& target,
                  const Make& make);

  struct Entry {
    Plan plan;
    std::vector<Group> groups;  // with the indices of the ranks
  };
  std::size_t max_plans_;
  std::map<Digest, Entry> plans_;
};

}  // namespace cp

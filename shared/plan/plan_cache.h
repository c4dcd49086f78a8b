// PlanCache: plans that a program keeps, because it will run them again.
#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <map>
#include <utility>

#include "shared/plan/plan.h"

namespace cp {

// A cache is bounded: the plan that was least recently asked for is dropped first. It never changes what a
// plan does, since the key is the digest of everything that the plan is made from.
class PlanCache {
 public:
  // `first_use` is called with each plan before it is given out for the first time; a Job compares it there
  // with the plans of the other ranks (contract 2). `most` is how many plans are kept; it is at least 2, so
  // that the plan that a device still has is not dropped. The default of 64 is chosen: enough for the layers
  // and lengths that a program uses in turn; if it is too small, plans are made again.
  explicit PlanCache(std::size_t most = 64, std::function<void(const Plan&)> first_use = {});

  // The plan of that key, which make() makes if there is none. The reference stays valid until `most` other
  // plans were asked for. If make() or first_use throws, nothing is kept.
  const Plan& get(const Digest& key, const std::function<Plan()>& make);

  std::size_t size() const { return plans_.size(); }

 private:
  using Entry = std::pair<Digest, Plan>;

  std::size_t most_;
  std::function<void(const Plan&)> first_use_;
  std::list<Entry> plans_;  // the latest first
  std::map<Digest, std::list<Entry>::iterator> by_key_;
};

}  // namespace cp

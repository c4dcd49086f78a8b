// PlanCache: plans that a program keeps, because it will run them again.
#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <map>
#include <utility>

#include "shared/plan/plan.h"

namespace cp {

// Bounded: the plan that was least recently asked for goes first. A cache never changes what a plan does: its key is the digest of
// everything that the plan is made from.
class PlanCache {
 public:
  // `first_use` is called with each plan before it is given out for the first time, such as to compare it with the other ranks'
  // (contract 2). `most` is 2 at least, so that the plan a device still has is not the one that goes.
  explicit PlanCache(std::size_t most = 64, std::function<void(const Plan&)> first_use = {});

  // The plan of that key, made when there is none. The reference holds until `most` other plans were asked for. Throws what make() and
  // first_use throw; nothing is kept then.
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

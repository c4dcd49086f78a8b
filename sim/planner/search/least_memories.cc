#include "sim/planner/search/least_memories.h"

#include <utility>

namespace cp::sim {

LeastMemories::Lease::Lease(LeastMemories& owner) : owner_(owner) {
  {
    const std::lock_guard lock(owner.mutex_);
    if (!owner.idle_.empty()) {
      own_ = std::move(owner.idle_.back());
      owner.idle_.pop_back();
      return;
    }
  }
  own_ = std::make_unique<LeastMemory>(owner.question_.model, owner.question_.workload, owner.rules_,
                                       [&owner](const StageLayers& layers, const Recompute& recompute) {
                                         return owner.living_.get(layers, recompute);
                                       });
}

LeastMemories::Lease::~Lease() {
  const std::lock_guard lock(owner_.mutex_);
  owner_.idle_.push_back(std::move(own_));
}

}  // namespace cp::sim

#include "sim/planner/search/least_memories.h"

#include <utility>

namespace cp::sim {

std::unique_ptr<LeastMemory> LeastMemories::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      std::unique_ptr<LeastMemory> last = std::move(idle_.back());
      idle_.pop_back();
      return last;
    }
  }
  return std::make_unique<LeastMemory>(question_.model, question_.workload, rules_,
                                       [this](const StageLayers& layers, const Recompute& recompute) {
                                         return living_.get(layers, recompute);
                                       });
}

Memory LeastMemories::of(const ParallelLayout& layout) {
  std::unique_ptr<LeastMemory> own = take();
  const Memory memory = own->of(layout);
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(own));
  return memory;
}

}  // namespace cp::sim

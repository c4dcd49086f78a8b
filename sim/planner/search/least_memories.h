// The least memory of layouts, asked for by several threads.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "shared/transformer/least_memory.h"
#include "sim/planner/search/living_cache.h"
#include "sim/planner/search/question.h"

namespace cp::sim {

// A LeastMemory belongs to one thread at a time. There are as many as threads have asked at once, and what
// lives when, which takes longest to find, they find together.
class LeastMemories {
 public:
  // Both must outlive this.
  LeastMemories(const PlanQuestion& question, const MemoryRules& rules)
      : question_(question), rules_(rules) {}

  Memory of(const ParallelLayout& layout);

 private:
  std::unique_ptr<LeastMemory> take();

  const PlanQuestion& question_;
  const MemoryRules& rules_;
  LivingCache living_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<LeastMemory>> idle_;
};

}  // namespace cp::sim

// The least memory of layouts, asked for by several threads.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "shared/transformer/least_memory.h"
#include "sim/planner/search/living_cache.h"
#include "sim/planner/search/question.h"

namespace cp::sim {

// A LeastMemory belongs to one thread at a time. There are as many as threads have asked at once. What lives
// when, which takes longest to find, is known to all once one has found it.
class LeastMemories {
 public:
  // Both must outlive this.
  LeastMemories(const PlanQuestion& question, const MemoryRules& rules)
      : question_(question), rules_(rules) {}

  Memory of(const ParallelLayout& layout) { return lease().of(layout); }

  // For a thread that asks for many layouts: what one has in common with the one before is kept meanwhile.
  class Lease {
   public:
    ~Lease();
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    Memory of(const ParallelLayout& layout) const { return own_->of(layout); }

   private:
    friend class LeastMemories;
    explicit Lease(LeastMemories& owner);

    LeastMemories& owner_;
    std::unique_ptr<LeastMemory> own_;
  };
  Lease lease() { return Lease(*this); }

 private:
  const PlanQuestion& question_;
  const MemoryRules& rules_;
  LivingCache living_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<LeastMemory>> idle_;
};

}  // namespace cp::sim

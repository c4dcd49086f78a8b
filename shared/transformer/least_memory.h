// What a layout needs at least of the GPU that needs most, in closed form: a search looks at millions of
// layouts, and makes plans of those alone that may fit. memory_reading.h says what a layout needs.
//
// Parameters, gradients, states, the cache and what is kept for the backward pass are what plans declare, to
// the byte where all sizes divide by all degrees. Of what a layer works with, and of the loss, some moments
// are looked at, and of each what certainly lives then (living_buffers.h). Properties hold it below the plans
// of generated models and layouts. Where the rows of a sequence do not divide by its ranks, it may count a
// row or two too many, since it is not one rank that has most rows, most keys, and the most of what is kept
// of them.
#pragma once

#include <memory>

#include "shared/transformer/living_buffers.h"
#include "shared/transformer/memory.h"
#include "shared/transformer/parallel_layout.h"
#include "shared/transformer/rank_layers.h"

namespace cp {

class LeastMemory {
 public:
  // All three must outlive this. Without `living`, what lives when is found anew for each layout, which takes
  // longer than all else.
  LeastMemory(const Transformer& model, const Workload& workload, const MemoryRules& rules,
              LivingBuffersOf living = nullptr);
  LeastMemory(const Transformer& model, const Workload& workload, MemoryRules&& rules,
              LivingBuffersOf living = nullptr) = delete;
  ~LeastMemory();

  // Of the stage that needs most. The layout must not be one that is refused. One thread at a time may ask,
  // since what it counts is kept.
  Memory of(const ParallelLayout& layout);

 private:
  // The last that was asked for: a search asks for layouts that differ in loss_chunks alone one after the
  // other.
  class OfLayout;
  // Null where a micro-batch has several plans, or is not trained. `layers` are those of the model.
  std::shared_ptr<const LivingBuffers> living(const ParallelLayout& layout, const StageLayers& layers) const;

  const Transformer& model_;
  const Workload& workload_;
  const MemoryRules& rules_;
  RankLayers layers_;
  const LivingBuffersOf living_;
  std::unique_ptr<OfLayout> last_;
};

// Of one layout alone.
Memory least_memory_of(const Transformer& model, const Workload& workload, const ParallelLayout& layout,
                       const MemoryRules& rules);

}  // namespace cp

// The part of least_memory.h that attention has: what its layers keep, make on their way and cache, and what
// attention plans allocate. Internal to least_memory.cc.
#pragma once

#include <cstdint>

#include "shared/transformer/mixers/mixer.h"
#include "shared/transformer/parallel_layout.h"
#include "shared/transformer/sizes.h"

namespace cp {

// Of the rank that has most rows. All arguments must outlive it.
class AttentionMemory : public MixerMemory {
 public:
  AttentionMemory(const Transformer& model, const Workload& workload, const ParallelLayout& layout,
                  const LocalSizes& sizes);

  LayerKept kept() const override;
  // q and k before their rotation and behind it, or their gradients; of latent attention what attention takes
  // and gives.
  std::int64_t bytes_inside() const override { return elements_inside() * width_; }
  // The claim of the core.
  std::int64_t workspace_bytes() const override;
  // Elements that a stage caches.
  std::int64_t cached_elements(int stage) const;

 private:
  std::int64_t elements_inside() const;  // in the workload's dtype
  std::int64_t ulysses_degree() const { return layout_.cp > 1 ? layout_.strategy.ulysses_degree : 1; }
  // Heads of keys that a rank computes on.
  std::int64_t computed_heads() const;
  // Of keys and values together, or of latent rows where these travel. With Ulysses a rank keeps its group's
  // rows.
  std::int64_t kept_kv_width() const;
  bool rows_travel() const { return use_ != LatentUse::nothing && layout_.keys == Strategy::Keys::latent; }

  const Transformer& model_;
  const Workload& workload_;
  const ParallelLayout& layout_;
  const LocalSizes& sizes_;
  const LatentUse use_;
  const std::int64_t width_;
  const bool training_;
};

}  // namespace cp

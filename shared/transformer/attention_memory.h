// The part of least_memory.h that attention has: what its layers keep, make on their way and cache, and what
// attention plans allocate. Internal to least_memory.cc.
#pragma once

#include <cstdint>

#include "shared/transformer/parallel_layout.h"
#include "shared/transformer/sizes.h"

namespace cp {

// Activations of one layer in bytes: its input, and what else each choice of recomputation keeps.
struct LayerKept {
  std::int64_t input = 0;
  std::int64_t cheap = 0;  // norms, activation function: selective computes these again
  std::int64_t rest = 0;   // what comes from products and mixers

  void add(const LayerKept& more) { input += more.input, cheap += more.cheap, rest += more.rest; }
};

// Of the rank that has most rows. All arguments must outlive it.
class AttentionMemory {
 public:
  AttentionMemory(const Transformer& model, const Workload& workload, const ParallelLayout& layout,
                  const LocalSizes& sizes);

  // What a layer's attention keeps for the backward pass.
  LayerKept kept() const;
  // Elements, in the workload's dtype, that live at one moment inside of the attention region at least: q and
  // k before their rotation and behind it, or their gradients; of latent attention what attention takes and
  // gives.
  std::int64_t elements_inside() const;
  // What attention plans allocate at least at one moment, beyond what is kept: the claim of the core.
  std::int64_t least_workspace_bytes() const;
  // Elements that a stage caches.
  std::int64_t cached_elements(int stage) const;

 private:
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

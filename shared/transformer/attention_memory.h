// The part of memory.h that attention has: what its layers keep, make on their way and cache, and what
// attention plans allocate. Internal to memory.cc.
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
  // Elements, in the workload's dtype, inside of the attention region in one pass: q and its gradient or what
  // it is made of, and k and v with theirs; beside latent rows, those gathered, and their gradients.
  std::int64_t elements_inside() const;
  // What attention plans allocate beyond what is kept; a property holds it against their arenas.
  std::int64_t workspace_bytes() const;
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
  // Bytes of the heads that so many latent rows are expanded to, and of their gradients.
  std::int64_t expanded_bytes(std::int64_t rows, std::int64_t heads) const;
  // What attention needs for sinks: they and their gradient in f32, and the values that they join the output
  // with; and, where nothing else would be merged, a sum in f32 of that many elements.
  std::int64_t sink_bytes(std::int64_t summed) const;
  std::int64_t cached_rows() const;  // of all sequences on a rank, or those at home
  int blocks_seen(int ring) const;

  const Transformer& model_;
  const Workload& workload_;
  const ParallelLayout& layout_;
  const LocalSizes& sizes_;
  const LatentUse use_;
  const std::int64_t width_;
  const bool training_;
};

}  // namespace cp

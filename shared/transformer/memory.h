// The memory of the GPU that needs most, term by term, in closed form: the definition by which a layout fits
// or not. Terms that a plan has buffers for are what these buffers hold (a property of the tests); the rest
// comes from MemoryRules.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

#include "shared/transformer/parallel_layout.h"

namespace cp {

// What a cluster and an implementation add.
struct MemoryRules {
  std::int64_t context_bytes = 0;       // of CUDA, its libraries and kernels
  std::int64_t communicator_bytes = 0;  // of each group that a rank is a member of
  double loss_f32_copies = 1;           // of the logits of a chunk, beside those in the workload's dtype
  double served_layer_bytes = 2;        // of a parameter of a layer, when serving
  std::int64_t cached_bytes = 0;        // of a cached element; 0: those of the workload's kv_dtype
  double slack = 0;                     // share of what is allocated that the allocator reserves beyond it
};

// Bytes on one GPU.
struct Memory {
  // Shards in f32, which are the master copies too; with sharding_size 1 also the 16-bit ones.
  std::int64_t parameters = 0;
  std::int64_t master = 0;     // f32 copies beside 16-bit parameters
  std::int64_t gradients = 0;  // shards, in the gradient dtype
  std::int64_t optimizer = 0;  // its states; 0 when offloaded
  // With pipeline stages: 16-bit parameters and whole gradients, for the whole step.
  std::int64_t gathered = 0;
  // Of the layers at work: gathered and prefetched ones, and gradients before they are scattered.
  std::int64_t unsharded = 0;
  std::int64_t activations = 0;  // kept for the backward pass, of all micro-batches in flight
  std::int64_t working = 0;  // of the layer at work: what it makes on its way, forward, again, and backward
  // Of a chunk, with the copies of the loss; the head's gathered weights and their gradients.
  std::int64_t logits = 0;
  std::int64_t attention = 0;  // gathered or travelling blocks, accumulators
  std::int64_t kv_cache = 0;
  std::int64_t communicators = 0;
  std::int64_t context = 0;
  std::int64_t slack = 0;

  std::int64_t allocated() const {
    // Loss and layers do not work at the same time.
    return parameters + master + gradients + optimizer + gathered + activations +
           std::max(unsharded + working + attention, logits) + kv_cache;
  }
  std::int64_t reserved() const { return allocated() + slack; }
  std::int64_t used() const { return reserved() + communicators + context; }
};

// Names and values, in the order above.
std::array<std::pair<std::string_view, std::int64_t>, 14> terms(const Memory& memory);

// Of the stage that needs most. The layout must not be refused.
Memory memory_of(const Transformer& model, const Workload& workload, const ParallelLayout& layout,
                 const MemoryRules& rules);

}  // namespace cp

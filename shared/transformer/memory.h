// The memory of the GPU that needs most, term by term. memory_reading.h reads it off the plans of a step;
// least_memory.h bounds it from below without them. MemoryRules says what a cluster and an implementation add
// to what plans declare.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

#include "shared/transformer/parallel_layout.h"

namespace cp {

// What a cluster and an implementation add to what the plan declares.
struct MemoryRules {
  std::int64_t context_bytes = 0;       // of the CUDA context, its libraries and kernels
  std::int64_t communicator_bytes = 0;  // for each group that a rank is a member of
  // How many f32 copies of a chunk's logits the loss makes beside those in the workload's dtype.
  double loss_f32_copies = 1;
  double served_layer_bytes = 2;  // for each parameter of a layer, in serving
  std::int64_t cached_bytes = 0;  // for each cached element; 0: size_bytes(kv_dtype)
  double slack = 0;               // what the allocator reserves beyond what is allocated, as a share of it
};

// Bytes on one GPU. Terms are 0 if the workload or the layout does not have them.
struct Memory {
  // Shards in f32, which are the master copies, too. If nothing is sharded (sharding_size 1), or if the f32
  // parameters are offloaded, it is those in the workload's dtype (unless `gathered` counts them).
  std::int64_t parameters = 0;
  std::int64_t master = 0;     // f32 copies beside whole 16-bit parameters
  std::int64_t gradients = 0;  // shards, in the gradient dtype
  std::int64_t optimizer = 0;  // its states; 0 if they are offloaded
  // Whole 16-bit parameters and whole gradients that a rank keeps for the step (ZeRO-1 and -2, pipeline
  // stages).
  std::int64_t gathered = 0;
  // Of the layers at work: gathered and prefetched parameters, and gradients before they are scattered.
  std::int64_t unsharded = 0;
  std::int64_t activations = 0;  // kept for the backward pass, for all micro-batches in flight
  std::int64_t working = 0;  // what the layer at work makes on its way: forward, computed again, and backward
  // The logits of a chunk, with the copies of the loss; and the head's gathered weights and their gradients.
  std::int64_t logits = 0;
  std::int64_t attention = 0;  // of the strategy: gathered or travelling blocks, accumulators
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

// The names and values of all terms, in the order above.
std::array<std::pair<std::string_view, std::int64_t>, 14> terms(const Memory& memory);

// Of the groups that a rank is a member of.
std::int64_t communicator_bytes(const Workload& workload, const ParallelLayout& layout,
                                const MemoryRules& rules);

}  // namespace cp

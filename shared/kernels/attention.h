// Attention on the host in tiles, as FlashAttention computes it (Dao et al. 2022): the scores of a panel of queries and a tile
// of keys are in the cache at a time, and a running maximum and sum replace the softmax over the whole row. All sums are in f32,
// and each result is rounded once.
//
// A fused step runs as an exact one; its results have the input's dtype, and delta is made of out and dout.
//
// What no slice of the mask touches is not computed, and its values do not matter, NaNs included. A NaN or an infinity
// among the keys that one query sees can spread to the queries that share its tile.
#pragma once

#include <cstdint>

#include "shared/kernels/tile_kernels.h"
#include "shared/plan/host_memory.h"
#include "shared/plan/plan.h"

namespace cp {

// Attention has an independent part for each batch and key head, numbered batch * kv_heads + kv_head. Any split of the parts
// gives the same bits; parts may run at the same time.
struct Parts {
  std::int64_t begin = 0, end = 0;
};
inline Parts all_parts(const AttentionForward& kernel) { return {0, kernel.k.shape[0] * kernel.k.shape[2]}; }
inline Parts all_parts(const AttentionBackward& kernel) { return {0, kernel.k.shape[0] * kernel.k.shape[2]}; }

void run(const AttentionForward& kernel, const HostMemory& memory, std::int64_t iteration, Parts parts,
         const TileKernels& tiles);
void run(const AttentionBackward& kernel, const HostMemory& memory, std::int64_t iteration, Parts parts,
         const TileKernels& tiles);

}  // namespace cp

// Attention on the host in tiles, as FlashAttention computes it (Dao et al. 2022): the scores of a panel of
// queries and a tile of keys are in the cache at a time, and a running maximum and sum replace the softmax
// over the whole row. All sums are in f32, and each result is rounded once.
//
// The errors of sums over keys and over queries do not grow with the sequence: see tile_kernels.h, and the
// numbers below.
//
// Of bf16 tensors q k and dout v are made by the processor's products of bf16 where it has them
// (AVX512-BF16): the products are exact and are added in f32. Weights and their gradients stay in f32, so the
// other products do too: rounded to bf16 they would cost more than all other roundings together.
//
// A fused step runs as an exact one; its results have the input's dtype, and delta is made of out and dout.
//
// What no slice of the mask touches is not computed, and its values do not matter, NaNs included. A NaN or an
// infinity among the keys that one query sees can spread to the queries that share its tile.
#pragma once

#include <cstdint>

#include "shared/kernels/tile_kernels.h"
#include "shared/plan/host_memory.h"
#include "shared/plan/plan.h"

namespace cp {

// How many roundings can touch one term of a sum at most, whatever the instruction set and the mask;
// tolerances are derived from these numbers. A term meets the roundings of its own chain, which has at most
// 95 terms (less than 3/2 of 64), and those of adding up the chains of a tile, of which there is at least one
// for each stretch of keys that some query sees. In a forward tile of 256 keys, the other stretches beside a
// chain of 95 keys can begin at every second key at most; a backward tile has 128 keys.
inline constexpr std::int64_t kForwardChain = 95 + 1 + (256 - 95) / 2;  // out, over keys
inline constexpr std::int64_t kQueryChain = 95 + 1 + (128 - 95) / 2;    // dq, over keys
// The weights of a row, over keys: sums of 16, and 16 such sums for a tile of 256.
inline constexpr std::int64_t kWeightChain = 16 + 16;
// A score, over the dim: a chain of less than 3/2 of kDimChain terms (or pairs of bf16). The sums of dim/32
// chains come in addition.
inline constexpr std::int64_t kScoreChain = 48;
// dk and dv, over queries: the 48 rows of a panel at most, and the panels of a group. Chosen: 8 panels are
// added up before they meet the pair of floats, so that this costs an eighth.
inline constexpr std::int64_t kGroupPanels = 8, kKeyChain = 48 + kGroupPanels;

// Attention falls into independent parts, one for each batch entry and key head, numbered batch * kv_heads +
// kv_head. Any split into parts gives the same bits, and parts may run at the same time.
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

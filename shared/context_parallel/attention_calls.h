// Turns mask slices into calls. The fused kernels of a library support a few forms of masks only
// (shared/plan/fused_attention.h), so slices are cut, and joined if they make one form together. Internal to
// shared/context_parallel.
#pragma once

#include <vector>

#include "shared/context_parallel/tensor.h"
#include "shared/plan/fused_attention.h"
#include "shared/plan/plan.h"

namespace cp::detail {

// One attention step: the rows of the operands that it gets, and its slices in coordinates of these rows.
struct AttentionCall {
  AttentionEngine engine = AttentionEngine::exact;
  Range q, k;
  std::vector<MaskSlice> slices;
  bool operator==(const AttentionCall&) const = default;
};

// Which calls are worth a launch. Up to kFewCalls, all are fused, whatever they do (chosen). If there are
// more, only those stay that do at least kLeastCallFlops in the forward pass: a call, with what puts its
// results together, takes about 20 us (estimated), in which the exact kernel does 2e8 flops at 10 Tflop/s.
// That rate is derived for the A100, the slowest GPU here: of 16 rows, 8 columns and 16 dims, which are 8,192
// flops, the kernel has one product of tensor cores for scores and four for values (runtime/cuda/
// attention_tiles.h), each of which takes as long as 4,096 flops of bf16 at 312 Tflop/s (NVIDIA's data
// sheet): at most 125 Tflop/s. It reaches a third (estimated: 8 warps on a multiprocessor, which wait for
// every load), and pieces that are small fill about a quarter of its tiles of 64 rows. What is smaller
// (striped blocks of few rows, hundreds of short documents with gaps) becomes one exact call together. At
// most kMostCalls stay, the largest ones (chosen): with merges and casts, a step of attention then becomes at
// most some ten thousand steps of the plan.
inline constexpr std::size_t kFewCalls = 64, kMostCalls = 1024;
inline constexpr double kLeastCallFlops = 2e8;

// The pairs of the slices (disjoint, as mask_slices() makes them), each in exactly one call. Fused calls come
// first, those with most queries before others. They are trimmed: every row of a call has a key, and every
// key a row.
//   causal             one call if the diagonal meets the last corner (bottom-right); else one for the rows
//                      up to there, and a full one for the rows that see every key
//   window             likewise; the rows that do not see its last keys, because these are on another rank,
//                      are a call of their own (window_tail), with the rows above that see every key if they
//                      are no more than the keys
//   neighbouring keys  slices of the same rows that follow one another are one mask: two halves of a
//                      head-tail shard are causal
//   neighbouring rows  join if they have one form together
//   documents          documents that tile queries and keys without gaps are one packed call, if the batch is
//                      1
// Pairs in no form that the library supports are one exact call, cut to the rows and keys that it touches.
// `of` gives dtype, dims, heads, batch and direction.
std::vector<AttentionCall> cut_into_calls(const std::vector<MaskSlice>& slices, const FusedAttention& library,
                                          const FusedShape& of);

}  // namespace cp::detail

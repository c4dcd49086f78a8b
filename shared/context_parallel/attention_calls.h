// From mask slices to calls: a library's fused kernels take a mask only in a few forms
// (shared/plan/fused_attention.h), so the slices are cut, and joined where they make one form together.
// Internal to shared/context_parallel.
#pragma once

#include <vector>

#include "shared/context_parallel/tensor.h"
#include "shared/plan/fused_attention.h"
#include "shared/plan/plan.h"

namespace cp::detail {

// One attention step: the rows of the operands that it is given, and its slices in coordinates of these.
struct AttentionCall {
  AttentionEngine engine = AttentionEngine::exact;
  Range q, k;
  std::vector<MaskSlice> slices;
  bool operator==(const AttentionCall&) const = default;
};

// Few calls are fused whatever they do. Of more, those stay that are worth a launch: about 20 us for the call
// and what brings its results in, in which the exact kernel, at some 10 Tflop/s, does kLeastCallFlops of the
// forward pass. What is smaller (striped blocks of few rows, hundreds of short documents that leave gaps) is
// one exact call together. At most kMostCalls stay, the largest: with merges and casts a step of attention is
// at most some ten times as many steps of the plan.
inline constexpr std::size_t kFewCalls = 64, kMostCalls = 1024;
inline constexpr double kLeastCallFlops = 2e8;

// The pairs of the slices (disjoint, as mask_slices() gives them), each in one call. Fused calls come first,
// those of most queries before others. They are trimmed: every row of them has a key, every key a row.
//   causal             one call where the diagonal meets the last corner (bottom-right); else one for the
//                      rows up to there, and a full one for the rows that see every key
//   window             likewise; what is behind its end (no upper bound, but a lower one) is not a form
//   neighbouring keys  slices of the same rows that follow one another are one mask: two halves of a
//                      head-tail shard are causal
//   neighbouring rows  join where they have one form together
//   documents          that tile queries and keys without gaps are one packed call, where the batch is 1
// What is in no form that the library takes is one exact call, cut to the rows and keys that it touches.
// `of`: the dtype, dims, heads, batch and direction.
std::vector<AttentionCall> cut_into_calls(const std::vector<MaskSlice>& slices, const FusedAttention& library,
                                          const FusedShape& of);

}  // namespace cp::detail

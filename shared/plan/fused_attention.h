// FusedAttention: which attention problems a library's fused kernels take and what memory they need, as plain
// data and rules, so that a plan for a GPU is made without one. The figures of a GPU's library are in the
// Target (gpu_target).
//
// The library meant is cuDNN 9 (scaled dot-product attention of its graph API); the figures were read off it
// by asking it without a GPU (tests/cudnn/support_test.cc).
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/digest.h"
#include "shared/base/dtype.h"
#include "shared/plan/plan.h"

namespace cp {

// One call of a fused kernel. Every query row sees at least one key.
//   full             all keys
//   causal           j <= i + (k_len - q_len): bottom-right; the same as top-left where q_len == k_len
//   causal_top_left  j <= i: top-left; keys after the first q_len are seen by none
//   window           i + (k_len - q_len) - window < j <= i + (k_len - q_len)
// `documents` (packed): the rows of q and of k are cut into as many parts, one after the other without gaps,
// and the mask holds inside of each, with that part's lengths; batch is 1.
struct FusedShape {
  enum class Mask : std::uint8_t { full, causal, causal_top_left, window };
  struct Document {
    std::int64_t q_len = 0, k_len = 0;
    bool operator==(const Document&) const = default;
  };
  bool backward = false;
  DType dtype = DType::bf16;
  std::int64_t batch = 1, q_len = 0, k_len = 0, q_heads = 0, kv_heads = 0, head_dim = 0, v_head_dim = 0;
  Mask mask = Mask::full;
  std::int64_t window = 0;          // of Mask::window
  std::vector<Document> documents;  // empty: not packed
  bool operator==(const FusedShape&) const = default;
};

// "backward bf16 batch 1, q_len 4096, ..., causal, 3 documents"
std::string to_text(const FusedShape& shape);

// The form that a list of mask slices has, where it has one: a single slice over all queries and keys, or one
// slice for each document, in order and without gaps. A slice is full, causal with diagonal == k_len - q_len
// >= 0 or with diagonal 0, or a window with the first of these diagonals; what a bound leaves out counts, not
// how it is written (a causal slice of one query that sees all keys is full). Lengths and mask of the result
// are set; dtype, heads, dims and batch are the caller's.
std::optional<FusedShape> fused_form(const std::vector<MaskSlice>& slices, std::int64_t q_len,
                                     std::int64_t k_len);

// Why the library does not take it, in words with the values; nothing where it does.
std::optional<std::string> refuse(const FusedAttention& library, const FusedShape& shape);

// Why a view does not do as an operand (q, k, v, out, dout or a gradient: dq, dk, dv) of such a call; nothing
// where it does. All but the last stride, which is 1, and the place in the buffer are multiples of 16 bytes
// (kernels move vectors; they do not check). With several documents heads lie within a row, and gradients are
// dense.
std::optional<std::string> refuse_operand(const FusedShape& shape, const View& view, bool is_gradient);

// The same for lse: contiguous, and beginning at a multiple of 16 bytes, but with several documents, whose
// lse goes through the workspace.
std::optional<std::string> refuse_lse(const FusedShape& shape, const View& lse);

// Bytes of workspace that suffice for a shape that is not refused: an upper bound, a multiple of 256. Forward
// it is small; backward it holds dq in f32 and, with fewer key heads than query heads, dk and dv of each
// query head.
std::int64_t workspace_bytes(const FusedAttention& library, const FusedShape& shape);

// cuDNN's figures for a generation of GPUs: "sm80", "sm90", "sm100" or "sm120". Throws InvalidInput for
// another.
const FusedAttention& cudnn_attention(std::string_view generation);

}  // namespace cp

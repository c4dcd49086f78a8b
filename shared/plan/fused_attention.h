// FusedAttention says which attention problems the fused kernels of a library support, and what memory they
// need, as plain data and rules: a plan for a GPU can be made without the GPU. A GPU's figures are in its
// Target (gpu_target).
//
// The library is cuDNN 9 (scaled dot-product attention of its graph API). Its figures were measured by asking
// it, which works without a GPU (tests/cudnn/support_test.cc).
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
//   causal           j <= i + (k_len - q_len): bottom-right; the same as top-left if q_len == k_len
//   causal_top_left  j <= i: top-left; no query sees the keys behind the first q_len
//   window           i + (k_len - q_len) - window < j <= i + (k_len - q_len)
//   window_tail      i - window < j: top-left; what queries see of a window whose last keys are not here. The
//                    first `window` rows see all keys, and each further row one key less
// With `documents` the call is packed: the rows of q and of k are cut into this many parts, one after the
// other without gaps, and the mask holds inside each part, with the lengths of that part; batch is 1.
struct FusedShape {
  enum class Mask : std::uint8_t { full, causal, causal_top_left, window, window_tail };
  struct Document {
    std::int64_t q_len = 0, k_len = 0;
    bool operator==(const Document&) const = default;
  };
  bool backward = false;
  DType dtype = DType::bf16;
  std::int64_t batch = 1, q_len = 0, k_len = 0, q_heads = 0, kv_heads = 0, head_dim = 0, v_head_dim = 0;
  Mask mask = Mask::full;
  std::int64_t window = 0;          // of Mask::window and Mask::window_tail
  std::vector<Document> documents;  // empty: not packed
  bool operator==(const FusedShape&) const = default;
};

// "backward bf16 batch 1, q_len 4096, ..., causal, 3 documents"
std::string to_text(const FusedShape& shape);

// The form of a list of mask slices, if it has one: a single slice over all queries and keys, or one slice
// for each document, in order and without gaps. A slice is full, or causal with diagonal == k_len - q_len >=
// 0 or diagonal 0, or a window with the first of these diagonals, or one whose upper diagonal lies behind all
// keys (window_tail). What counts is which pairs are allowed, not how the slice is written: a causal slice of
// one query that sees all keys is full. The result has lengths and mask; dtype, heads, dims and batch are for
// the caller to set.
std::optional<FusedShape> fused_form(const std::vector<MaskSlice>& slices, std::int64_t q_len,
                                     std::int64_t k_len);

// Says why the library does not support the shape, with the values; nothing if it does.
std::optional<std::string> refuse(const FusedAttention& library, const FusedShape& shape);

// Says why a view cannot be an operand of such a call (q, k, v, out, dout, or a gradient dq, dk, dv); nothing
// if it can. The last stride must be 1; the other strides and the place in the buffer must be multiples of 16
// bytes, because the kernels move vectors of this size and do not check. With several documents, the heads
// must lie within a row, and what a backward pass reads and writes must be dense.
std::optional<std::string> refuse_operand(const FusedShape& shape, const View& view, bool is_gradient);

// The same for lse: it must be contiguous and begin at a multiple of 16 bytes. With several documents it may
// begin anywhere, since lse goes through the workspace.
std::optional<std::string> refuse_lse(const FusedShape& shape, const View& lse);

// An upper bound of the workspace in bytes, a multiple of 256, for a shape that is not refused. A forward
// call needs little. A backward call keeps dq in f32 and, if there are fewer key heads than query heads, dk
// and dv of each query head.
std::int64_t workspace_bytes(const FusedAttention& library, const FusedShape& shape);

// cuDNN's figures for a generation of GPUs: "sm80", "sm90", "sm100" or "sm120". Throws InvalidInput for any
// other.
const FusedAttention& cudnn_attention(std::string_view generation);

}  // namespace cp

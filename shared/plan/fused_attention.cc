#include "shared/plan/fused_attention.h"

#include <algorithm>
#include <map>
#include <set>

#include "shared/base/error.h"
#include "shared/plan/fused_bucket.h"

namespace cp {
namespace {

using Mask = FusedShape::Mask;
using Document = FusedShape::Document;

std::string_view name(Mask mask) {
  switch (mask) {
    case Mask::full:
      return "full";
    case Mask::causal:
      return "causal";
    case Mask::causal_top_left:
      return "top-left causal";
    case Mask::window:
      return "window";
    case Mask::window_tail:
      return "window tail";
  }
  return "";
}

// The last key that the last row of the slice does not see because it lies below the window; -1 if there is
// none.
std::int64_t below_window(const MaskSlice& slice) {
  if (slice.kind != MaskSlice::Kind::window) return -1;
  return std::max<std::int64_t>(-1, slice.q_len - 1 + slice.diagonal - slice.window);
}

// Whether the slice allows the pairs that the mask allows in a block of its size. Bounds on keys move by one
// a row, so the first row tells the upper ones apart and the last row the lower ones.
bool has_mask(const MaskSlice& slice, Mask mask, std::int64_t window) {
  const std::int64_t q = slice.q_len, k = slice.k_len;
  const bool is_full = slice.kind == MaskSlice::Kind::full;
  const std::int64_t upper = is_full ? k - 1 : std::min(k - 1, slice.diagonal), lower = below_window(slice);
  const bool sees_the_last_key = mask == Mask::full || mask == Mask::window_tail;
  const std::int64_t wanted_upper = sees_the_last_key ? k - 1 : mask == Mask::causal_top_left ? 0 : k - q;
  const std::int64_t wanted_lower = mask == Mask::window        ? std::max<std::int64_t>(-1, k - 1 - window)
                                    : mask == Mask::window_tail ? std::max<std::int64_t>(-1, q - 1 - window)
                                                                : -1;
  return wanted_upper >= 0 && upper == wanted_upper && lower == wanted_lower;
}

// The window that a mask must have so that the slices may have it; 0 if it has none.
std::int64_t window_of(const std::vector<MaskSlice>& slices, Mask mask) {
  std::int64_t window = 0;
  for (const MaskSlice& slice : slices) {
    if (mask == Mask::window && slice.kind == MaskSlice::Kind::window)
      window = std::max(window, slice.window);
    if (mask == Mask::window_tail && below_window(slice) >= 0)
      window = std::max(window, slice.q_len - 1 - below_window(slice));
  }
  return window;
}

}  // namespace

std::string to_text(const FusedShape& shape) {
  std::string text = str(shape.backward ? "backward " : "forward ", cp::name(shape.dtype), " batch ",
                         shape.batch, ", q_len ", shape.q_len, ", k_len ", shape.k_len, ", q_heads ",
                         shape.q_heads, ", kv_heads ", shape.kv_heads, ", head_dim ", shape.head_dim,
                         ", v_head_dim ", shape.v_head_dim, ", ", name(shape.mask));
  if (shape.mask == Mask::window || shape.mask == Mask::window_tail) text += str(" ", shape.window);
  if (!shape.documents.empty()) text += str(", ", shape.documents.size(), " documents");
  return text;
}

std::optional<FusedShape> fused_form(const std::vector<MaskSlice>& slices, std::int64_t q_len,
                                     std::int64_t k_len) {
  std::vector<MaskSlice> parts = slices;
  std::ranges::sort(parts, {}, &MaskSlice::q_begin);
  std::int64_t q_end = 0, k_end = 0;
  for (const MaskSlice& part : parts) {
    if (part.q_begin != q_end || part.k_begin != k_end || part.q_len < 1 || part.k_len < 1) return {};
    q_end += part.q_len;
    k_end += part.k_len;
  }
  if (parts.empty() || q_end != q_len || k_end != k_len) return {};
  for (const Mask mask : {Mask::full, Mask::causal, Mask::causal_top_left, Mask::window, Mask::window_tail}) {
    const std::int64_t window = window_of(parts, mask);
    const bool is_window = mask == Mask::window || mask == Mask::window_tail;
    const auto fits = [&](const MaskSlice& part) { return has_mask(part, mask, window); };
    if (is_window && window < 1) continue;
    if (!std::ranges::all_of(parts, fits)) continue;
    FusedShape shape;
    shape.q_len = q_len;
    shape.k_len = k_len;
    shape.mask = mask;
    shape.window = window;
    if (parts.size() > 1)
      for (const MaskSlice& part : parts) shape.documents.push_back({part.q_len, part.k_len});
    return shape;
  }
  return {};
}

std::optional<std::string> refuse(const FusedAttention& library, const FusedShape& shape) {
  if (!library.dtypes.contains(shape.dtype)) {
    std::set<std::string_view> names;
    for (const DType dtype : library.dtypes) names.insert(cp::name(dtype));
    return str("dtype ", cp::name(shape.dtype), " is not one of ", join(names, ", "));
  }
  if (std::min({shape.batch, shape.q_len, shape.k_len, shape.q_heads, shape.kv_heads, shape.head_dim,
                shape.v_head_dim}) < 1)
    return str("a size is not positive: batch ", shape.batch, ", q_len ", shape.q_len, ", k_len ",
               shape.k_len, ", q_heads ", shape.q_heads, ", kv_heads ", shape.kv_heads, ", head_dim ",
               shape.head_dim, ", v_head_dim ", shape.v_head_dim);
  if (shape.q_heads % shape.kv_heads != 0)
    return str("kv_heads ", shape.kv_heads, " does not divide q_heads ", shape.q_heads);
  const std::int64_t max_dim = shape.backward ? library.max_head_dim_backward : library.max_head_dim_forward;
  for (const auto& [what, dim] : std::map<std::string_view, std::int64_t>{{"head_dim", shape.head_dim},
                                                                          {"v_head_dim", shape.v_head_dim}}) {
    if (dim % library.head_dim_multiple != 0)
      return str(what, " ", dim, " is not a multiple of ", library.head_dim_multiple);
    if (dim > max_dim)
      return str(what, " ", dim, " is above ", max_dim, ", the ", shape.backward ? "backward" : "forward",
                 " kernels' limit");
  }
  // A call without documents is treated as one document below, so that the rules of lengths are written once.
  if (shape.mask == Mask::window && !library.window) return str("no kernel supports a window");
  if (shape.mask == Mask::window_tail && !library.window_tail)
    return str("no kernel supports a window whose last keys are in another call");
  if ((shape.mask == Mask::window || shape.mask == Mask::window_tail) && shape.window < 1)
    return str("window ", shape.window, " sees no key");
  std::vector<Document> parts = shape.documents;
  if (parts.empty()) {
    parts = {{shape.q_len, shape.k_len}};
  } else {
    if (!library.packed) return str("no kernel supports several documents");
    if (shape.batch != 1) return str("several documents need batch 1, not ", shape.batch);
    if (shape.backward && (shape.head_dim % 16 != 0 || shape.v_head_dim % 16 != 0))
      return str("the backward kernels of several documents need multiples of 16, not head_dim ",
                 shape.head_dim, " and v_head_dim ", shape.v_head_dim);
    std::int64_t q_len = 0, k_len = 0;
    for (const Document& part : parts) {
      q_len += part.q_len;
      k_len += part.k_len;
    }
    // In a bucket as long as a tile (fused_bucket.cc) other kernels than those for single rows would serve
    // them, maybe with the right log-sum-exp. No GPU has run that, so they are refused.
    const auto is_query = [](const Document& part) { return part.q_len == 1; };
    if (std::ranges::all_of(parts, is_query))
      return str("of ", parts.size(),
                 " documents of one query each cuDNN writes a wrong log-sum-exp; make a call for each");
    if (q_len != shape.q_len || k_len != shape.k_len)
      return str("documents have ", q_len, " queries and ", k_len, " keys, but the call has ", shape.q_len,
                 " and ", shape.k_len);
  }
  const auto is_pair = [](const Document& part) { return part.q_len == 1 && part.k_len == 1; };
  if (shape.backward && std::ranges::all_of(parts, is_pair))
    return str("no backward kernel supports one query and one key");
  for (const Document& part : parts)
    if (part.q_len < 1 || part.k_len < 1 ||
        ((shape.mask == Mask::causal || shape.mask == Mask::window) && part.q_len > part.k_len) ||
        (shape.mask == Mask::window_tail && part.q_len - shape.window >= part.k_len))
      return str("with ", part.q_len, " queries and ", part.k_len, " keys under a ", name(shape.mask),
                 " mask, some rows see no key");
  if (shape.mask == Mask::window_tail && shape.documents.empty() && shape.q_len > shape.k_len)
    return str("under a window tail, ", shape.q_len, " queries are more than ", shape.k_len,
               " keys; give those that see every key a call of their own");
  return {};
}

std::optional<std::string> refuse_operand(const FusedShape& shape, const View& view, bool is_gradient) {
  const auto why = [&](std::string_view reason) {
    return str("strides [", join(view.strides), "] of a view [", join(view.shape),
               "] (batch, seq, heads, dim) at element ", view.offset, ": ", reason);
  };
  if (view.shape.size() != 4 || view.strides.size() != 4) return why("there must be four");
  const std::int64_t wide = 16 / size_bytes(shape.dtype);
  if (view.strides[3] != 1) return why("the last must be 1");
  if (view.offset % wide != 0 || view.advance.stride % wide != 0)
    return why("it must begin at a multiple of 16 bytes");
  for (std::size_t i = 0; i < 3; ++i)
    if (view.shape[i] > 1 && (view.strides[i] % wide != 0 || view.strides[i] == 0))
      return why("the others must be multiples of 16 bytes, and not 0");
  if (shape.documents.empty()) return {};
  const std::int64_t rows = view.shape[1], heads = view.shape[2], dim = view.shape[3];
  const std::int64_t row = rows > 1 ? view.strides[1] : heads * dim, head = heads > 1 ? view.strides[2] : dim;
  if (head < dim || row < (heads - 1) * head + dim)
    return why("with several documents, the heads of a row must lie beside each other (BSHD)");
  // Measured on an H200 (cuDNN 9.14 and 9.19): backward, from the second document on, gradients are wrong or
  // not written where q, k, v and their gradients do not have the same steps from row to row.
  if ((is_gradient || shape.backward) && (head != dim || row != heads * dim))
    return why(
        "with several documents, what a backward pass reads and writes must be dense [seq, heads, dim]; copy "
        "it, or make a call for each document");
  return {};
}

std::optional<std::string> refuse_lse(const FusedShape& shape, const View& lse) {
  if (!is_contiguous(lse))
    return str("lse has strides [", join(lse.strides), "] of a view [", join(lse.shape),
               "] (batch, heads, seq), which is not contiguous; copy it");
  constexpr std::int64_t kWide = 16 / 4;  // elements of f32 in the 16 bytes that kernels load at once
  if (shape.documents.empty() && (lse.offset % kWide != 0 || lse.advance.stride % kWide != 0))
    return str("lse begins at element ", lse.offset, " and advances by ", lse.advance.stride,
               "; both must be multiples of 16 bytes: copy it");
  return {};
}

std::int64_t workspace_bytes(const FusedAttention& library, const FusedShape& shape) {
  return packed_lse_bytes(shape) + graph_workspace_bytes(library, shape, bucket_of(shape));
}

const FusedAttention& cudnn_attention(std::string_view generation) {
  static const std::map<std::string_view, FusedAttention> known = [] {
    // What each generation supports was measured by asking cuDNN (tests/cudnn/support_test.cc). sm_count is
    // that of the A100, RTX 5090, B200 and H100 SXM (as NVIDIA publishes them); a GPU with more
    // multiprocessors may ask for more workspace when it decodes.
    FusedAttention figures{.dtypes = {DType::f16, DType::bf16},
                           .head_dim_multiple = 8,
                           .max_head_dim_forward = 256,
                           .max_head_dim_backward = 128,
                           .window = true,
                           .window_tail = true,
                           .packed = false,
                           .sm_count = 108};
    std::map<std::string_view, FusedAttention> made = {{"sm80", figures}};
    figures.sm_count = 170;
    made["sm120"] = figures;
    figures.packed = true;
    figures.sm_count = 148;
    made["sm100"] = figures;
    figures.max_head_dim_backward = 256;
    figures.sm_count = 132;
    made["sm90"] = figures;
    return made;
  }();
  const auto found = known.find(generation);
  if (found == known.end())
    throw InvalidInput(
        str("no figures of cuDNN for GPU generation ", generation, "; use sm80, sm90, sm100 or sm120"));
  return found->second;
}

}  // namespace cp

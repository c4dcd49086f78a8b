#include "shared/plan/fused_attention.h"

#include <algorithm>
#include <map>
#include <set>

#include "shared/base/error.h"

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
    case Mask::window:
      return "window";
  }
  return "";
}

// Whether the slice allows the pairs that the bottom-right mask allows in a block of its size. Bounds on keys move by one a row, so
// the first row tells the upper ones apart and the last row the lower ones.
bool has_mask(const MaskSlice& slice, Mask mask, std::int64_t window) {
  const std::int64_t q = slice.q_len, k = slice.k_len;
  const bool is_full = slice.kind == MaskSlice::Kind::full;
  const std::int64_t upper = is_full ? k - 1 : std::min(k - 1, slice.diagonal);
  const std::int64_t lower = slice.kind == MaskSlice::Kind::window
                                 ? std::max<std::int64_t>(-1, q - 1 + slice.diagonal - slice.window)
                                 : -1;
  const std::int64_t wanted_upper = mask == Mask::full ? k - 1 : k - q;
  const std::int64_t wanted_lower = mask == Mask::window ? std::max<std::int64_t>(-1, k - 1 - window) : -1;
  return wanted_upper >= 0 && upper == wanted_upper && lower == wanted_lower;
}

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

std::optional<FusedShape> fused_form(const std::vector<MaskSlice>& slices, std::int64_t q_len,
                                     std::int64_t k_len) {
  std::vector<MaskSlice> parts = slices;
  std::ranges::sort(parts, {}, &MaskSlice::q_begin);
  std::int64_t q_end = 0, k_end = 0, window = 0;
  for (const MaskSlice& part : parts) {
    if (part.q_begin != q_end || part.k_begin != k_end || part.q_len < 1 || part.k_len < 1) return {};
    q_end += part.q_len;
    k_end += part.k_len;
    if (part.kind == MaskSlice::Kind::window) window = std::max(window, part.window);
  }
  if (parts.empty() || q_end != q_len || k_end != k_len) return {};
  for (const Mask mask : {Mask::full, Mask::causal, Mask::window}) {
    const auto fits = [&](const MaskSlice& part) { return has_mask(part, mask, window); };
    if (mask == Mask::window && window < 1) continue;
    if (!std::ranges::all_of(parts, fits)) continue;
    FusedShape shape;
    shape.q_len = q_len;
    shape.k_len = k_len;
    shape.mask = mask;
    shape.window = mask == Mask::window ? window : 0;
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
  if (shape.mask == Mask::window && !library.window) return str("no kernel has a window");
  if (shape.mask == Mask::window && shape.window < 1) return str("window ", shape.window, " sees no key");
  std::vector<Document> parts = shape.documents;
  if (parts.empty()) {
    parts = {{shape.q_len, shape.k_len}};
  } else {
    if (!library.packed) return str("no kernel takes several documents");
    if (shape.batch != 1) return str("several documents in a batch of ", shape.batch);
    std::int64_t q_len = 0, k_len = 0;
    for (const Document& part : parts) {
      q_len += part.q_len;
      k_len += part.k_len;
    }
    if (q_len != shape.q_len || k_len != shape.k_len)
      return str("documents have ", q_len, " queries and ", k_len, " keys of ", shape.q_len, " and ",
                 shape.k_len);
  }
  for (const Document& part : parts)
    if (part.q_len < 1 || part.k_len < 1 || (shape.mask != Mask::full && part.q_len > part.k_len))
      return str("with ", part.q_len, " queries and ", part.k_len, " keys under a ", name(shape.mask),
                 " mask, some rows see no key");
  return {};
}

std::int64_t workspace_bytes(const FusedAttention& library, const FusedShape& shape) {
  static_cast<void>(library);
  const std::int64_t rows = shape.batch * shape.q_heads * round_up(shape.q_len, 128);
  const std::int64_t keys = shape.batch * shape.q_heads * round_up(shape.k_len, 128);
  std::int64_t bytes = 1 << 16;
  if (!shape.documents.empty()) bytes += rows * 4;
  if (shape.backward) {
    bytes += rows * (round_up(shape.head_dim, 64) + 2) * 4;
    bytes += keys * (round_up(shape.head_dim, 64) + round_up(shape.v_head_dim, 64)) * 4;
  }
  return round_up(bytes, 256);
}

const FusedAttention& cudnn_attention(std::string_view generation) {
  static const std::map<std::string_view, FusedAttention> known = [] {
    FusedAttention figures{.dtypes = {DType::f16, DType::bf16},
                           .head_dim_multiple = 8,
                           .max_head_dim_forward = 128,
                           .max_head_dim_backward = 128,
                           .window = true,
                           .packed = true,
                           .sm_count = 108};
    std::map<std::string_view, FusedAttention> made = {{"sm80", figures}};
    figures.sm_count = 132;
    made["sm90"] = figures;
    figures.sm_count = 148;
    made["sm100"] = figures;
    figures.sm_count = 170;
    made["sm120"] = figures;
    return made;
  }();
  const auto found = known.find(generation);
  if (found == known.end())
    throw InvalidInput(
        str("no figures of cuDNN for GPU generation ", generation, "; use sm80, sm90, sm100 or sm120"));
  return found->second;
}

}  // namespace cp

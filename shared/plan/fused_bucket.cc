#include "shared/plan/fused_bucket.h"

#include <algorithm>
#include <bit>

#include "shared/base/types.h"

namespace cp {
namespace {

using Mask = FusedShape::Mask;

// Chosen: up to 8 documents are one bucket, since a document that is not there costs blocks that end at once.
constexpr std::int64_t kFewDocuments = 8;
// A tile of the library's kernels has 64 to 256 rows, so that less room than that saves nothing.
constexpr std::int64_t kTile = 128;
// Chosen: the backward workspace holds dq of all rows in f32, so rows are rounded by an eighth at most, and
// not to a power of two as what costs no memory.
constexpr std::int64_t kSteps = 8;
// Up to this length of queries or keys, the library's backward kernels may keep a second dq in their
// workspace (keeps_second_dq). Measured: found by asking cuDNN for its workspace; tests/cudnn compares ours
// with its answers. Too small a value would make a plan take memory beside itself, too large a one would only
// declare memory that is not used.
constexpr std::int64_t kShort = 256;

std::int64_t power_of_two(std::int64_t value) {
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(value)));
}

// A single row has kernels of its own.
std::int64_t longest(std::int64_t rows) { return rows <= 1 ? rows : std::max(kTile, power_of_two(rows)); }

std::int64_t all_rows(std::int64_t rows) {
  const auto octave =
      static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(std::max<std::int64_t>(rows, 1))));
  return align_up(rows, std::max(kTile, octave / kSteps));
}

// The kernels for sm80, which sm120 runs too and sm100 takes for short calls, add dq up in a copy of their
// own. They are also the ones that cannot run several documents backward.
bool keeps_second_dq(const FusedAttention& library, std::int64_t q_len, std::int64_t k_len) {
  return !library.packed || std::min(q_len, k_len) <= kShort;
}

}  // namespace

bool is_square(const FusedShape& shape) {
  if (shape.documents.empty()) return shape.q_len == shape.k_len;
  return std::ranges::all_of(
      shape.documents, [](const FusedShape::Document& document) { return document.q_len == document.k_len; });
}

std::optional<FusedBucket> bucket_of(const FusedShape& shape) {
  if (shape.documents.empty()) return {};
  FusedBucket bucket;
  for (const FusedShape::Document& document : shape.documents) {
    bucket.longest_q = std::max(bucket.longest_q, document.q_len);
    bucket.longest_k = std::max(bucket.longest_k, document.k_len);
  }
  bucket.documents = std::max(kFewDocuments, power_of_two(static_cast<std::int64_t>(shape.documents.size())));
  bucket.longest_q = longest(bucket.longest_q), bucket.longest_k = longest(bucket.longest_k);
  // cuDNN 9.9 and older refuse a bottom-right window at sm90 where both are as long
  // (node/scaled_dot_product_flash_attention.h of cudnn-frontend).
  if (shape.mask == Mask::window && bucket.longest_q == bucket.longest_k && !is_square(shape))
    bucket.longest_k *= 2;
  if (shape.backward) bucket.q_rows = all_rows(shape.q_len), bucket.k_rows = all_rows(shape.k_len);
  return bucket;
}

FusedShape graph_shape(const FusedShape& shape) {
  FusedShape graph = shape;
  if (graph.mask == Mask::causal && is_square(shape)) graph.mask = Mask::causal_top_left;
  if (graph.documents.empty()) return graph;
  graph.documents.clear();
  graph.q_len = graph.k_len = 0;
  return graph;
}

std::int64_t packed_lse_bytes(const FusedShape& shape) {
  if (shape.documents.empty()) return 0;
  return align_up(shape.q_len * shape.q_heads * 4, 256);
}

std::int64_t graph_workspace_bytes(const FusedAttention& library, const FusedShape& shape,
                                   const std::optional<FusedBucket>& bucket) {
  const std::int64_t f32 = 4, heads = shape.batch * shape.q_heads;
  const std::int64_t documents = bucket ? bucket->documents : 0;
  const std::int64_t longest_q = bucket ? bucket->longest_q : shape.q_len,
                     q_rows = bucket ? bucket->q_rows : shape.q_len,
                     k_rows = bucket ? bucket->k_rows : shape.k_len;

  // Descriptors and counters, for each document, too. Measured: cuDNN asked for at most 17,152 bytes and 448
  // for each document; the bound has room for versions that ask for more.
  std::int64_t bytes = (std::int64_t{64} << 10) + documents * 512;
  if (!shape.backward) {
    // Decoding cuts the keys into up to 64 parts, so that every multiprocessor has work, and keeps out and
    // two sums for each part. Measured: up to 8.7 pairs of a head and a part for each multiprocessor; the
    // bound allows 16.
    if (longest_q == 1) {
      const std::int64_t copies = shape.batch * std::max<std::int64_t>(documents, 1);
      const std::int64_t parts =
          std::clamp<std::int64_t>(16 * library.sm_count / (copies * shape.kv_heads), 1, 64);
      bytes += copies * shape.q_heads * parts * (shape.v_head_dim + 2) * f32;
    }
    return align_up(bytes, 256);
  }
  bytes += heads * q_rows * f32;                   // rowsum(dout * out)
  bytes += heads * q_rows * shape.head_dim * f32;  // dq
  if (shape.q_heads != shape.kv_heads)             // dk, dv of each query head
    bytes += heads * k_rows * (shape.head_dim + shape.v_head_dim) * (bucket ? f32 : size_bytes(shape.dtype));
  if (keeps_second_dq(library, q_rows, k_rows)) bytes += heads * align_up(q_rows, 8) * shape.head_dim * f32;
  return align_up(bytes, 256);
}

}  // namespace cp

// CudnnAttention describes a call of a fused kernel to the library: its operands, their strides, and what of
// its documents lies in tables on the GPU. CudnnGraphKey is what of that a graph is made for. Plain data, so
// that the device, its tests and the emulated GPU use the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shared/base/digest.h"
#include "shared/base/types.h"
#include "shared/plan/fused_attention.h"
#include "shared/plan/fused_bucket.h"
#include "shared/plan/plan.h"

namespace cp::runtime {

// One call. Strides count elements, and are those of views [batch, seq, heads, dim].
struct CudnnAttention {
  FusedShape shape;
  double softmax_scale = 1;
  Shape q, k, v, out;
  Shape dout, dq, dk, dv;  // of the backward pass
  // Whether the backward pass sums dq up in a fixed order. Then its workspace grows with q_len * k_len.
  bool deterministic = false;
  bool operator==(const CudnnAttention&) const = default;
};
// Make calls with dense views. In memory they are [batch, seq, heads, dim] (BSHD), [batch, heads, seq, dim]
// (BNSD) or [seq, batch, heads, dim] (SBHD).
CudnnAttention dense_bshd(const FusedShape& shape, double softmax_scale);
CudnnAttention dense_bnsd(const FusedShape& shape, double softmax_scale);
CudnnAttention dense_sbhd(const FusedShape& shape, double softmax_scale);  // without documents

// The tensors that a call binds. Only a packed call has offsets (int64) and lengths (int32). Each operand has
// its own offsets.
enum class CudnnTensor : std::int64_t {
  q = 1,
  k,
  v,
  out,
  lse,
  dout,
  dq,
  dk,
  dv,
  q_len,
  k_len,
  lse_offsets,
  first_offsets,  // of q; those of operand t are offsets_of(t)
};
constexpr std::int64_t offsets_of(CudnnTensor operand) {
  return static_cast<std::int64_t>(CudnnTensor::first_offsets) + static_cast<std::int64_t>(operand) -
         static_cast<std::int64_t>(CudnnTensor::q);
}

// The operands of the call without lse, in the order of CudnnTensor.
std::vector<CudnnTensor> operands(const FusedShape& shape);
bool is_query_side(CudnnTensor operand);  // its rows are queries
std::string_view name(CudnnTensor operand);
// What an operand holds: rows of all documents.
struct CudnnExtents {
  std::int64_t rows = 0, heads = 0, dim = 0;
};
CudnnExtents extents(const FusedShape& shape, CudnnTensor operand);
const Shape& strides(const CudnnAttention& call, CudnnTensor operand);
Shape& strides(CudnnAttention& call, CudnnTensor operand);
// The strides of a view, except that dimensions with one element, whose strides may be anything, get the
// strides of a dense view. So equal calls have equal strides.
Shape normal_strides(const View& view);

// Limits a graph's own workspace, in bytes.
using WorkspaceLimit = std::optional<std::int64_t>;

// All that a graph depends on. Calls with one key share a graph.
struct CudnnGraphKey {
  FusedShape shape;                   // graph_shape() of the call's
  std::optional<FusedBucket> bucket;  // of a packed call
  // Whether the diagonal begins at the first query and the first key, not where it meets the last ones.
  bool top_left = false;
  double softmax_scale = 1;
  Shape q, k, v, out, dout, dq, dk, dv;  // strides; a packed call's have no batch stride, which is 0 here
  bool deterministic = false;
  WorkspaceLimit limit = {};
  bool operator==(const CudnnGraphKey&) const = default;
};
CudnnGraphKey graph_key(const CudnnAttention& call, WorkspaceLimit limit = {});
const Shape& strides(const CudnnGraphKey& key, CudnnTensor operand);
// Equal for equal keys in every process: graphs are kept in files by it.
Digest digest(const CudnnGraphKey& key);
std::string to_text(const CudnnGraphKey& key);

// As the library counts: a batch of documents of the longest one's length.
struct CudnnLengths {
  std::int64_t batch = 0, q = 0, k = 0;
};
CudnnLengths lengths(const CudnnGraphKey& key);

// What a packed call binds beside its operands: lengths and offsets, at which byte of `bytes` each tensor
// begins, by its number. There are as many documents as the bucket has room for; those that the call does not
// have are empty and begin where the last one ends.
struct CudnnTables {
  std::vector<std::byte> bytes;
  std::vector<std::pair<std::int64_t, std::size_t>> tensors;
};
CudnnTables tables_of(const CudnnAttention& call);  // empty for a call without documents

}  // namespace cp::runtime

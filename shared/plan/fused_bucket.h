// FusedBucket: packed calls whose documents differ, but which one graph of the library serves. The library
// reads lengths and offsets from the GPU's memory when a call runs; what its graph is made for is only how
// many documents there may be, how long the longest may be, and how many rows there may be in all. These are
// rounded up here, so that a stream of batches with other documents each time needs few graphs. A call fills
// up its tables: documents that it does not have are empty and lie at the end.
//
// Transformer Engine rounds in the same way (get_max_batch_size and get_max_tokens in
// fused_attn/utils.cu), but takes the rows of all documents for the longest one; so cuDNN has run with room
// that no document needs since 9.6.
#pragma once

#include <cstdint>
#include <optional>

#include "shared/plan/fused_attention.h"

namespace cp {

struct FusedBucket {
  std::int64_t documents = 0;
  std::int64_t longest_q = 0, longest_k = 0;  // of one document
  // Of all documents; 0 in a forward call, whose graph does not depend on them.
  std::int64_t q_rows = 0, k_rows = 0;
  bool operator==(const FusedBucket&) const = default;
};

// Nothing for a call without documents: its lengths are part of its graph.
std::optional<FusedBucket> bucket_of(const FusedShape& shape);

// Whether each document, or the only one, has as many queries as keys. Then top-left and bottom-right are the
// same.
bool is_square(const FusedShape& shape);

// The call as a graph is made for it: causal over squares is top-left; the documents are left out, and so are
// q_len and k_len where there are documents, since the bucket has what is needed of them.
FusedShape graph_shape(const FusedShape& shape);

// An upper bound of the workspace of a graph alone, in bytes. workspace_bytes() is this, with room for the
// lse of a packed call.
std::int64_t graph_workspace_bytes(const FusedAttention& library, const FusedShape& shape,
                                   const std::optional<FusedBucket>& bucket);

// The bytes of lse as [rows, heads]. The workspace of a packed call begins with it, and the graph's own
// workspace follows. The workspace of any other call is the graph's own.
std::int64_t packed_lse_bytes(const FusedShape& shape);

}  // namespace cp

// Latent rows on one device in float64: keys and values that they expand to, and gradients by the chain rule
// (context_parallel/problem.h). It shares no code with the plans.
#pragma once

#include <vector>

#include "shared/context_parallel/problem.h"

namespace cp::sim {

struct ReferenceBackward;

// Row-major: latent [batch, kv_len, rank + rope_dim], kv_up [kv_heads, nope + v_head_dim, rank].
struct LatentInputs {
  const AttentionProblem& problem;
  const std::vector<double>&latent, &kv_up;
};

// [batch, kv_heads, kv_len, head_dim] and [batch, kv_heads, kv_len, v_head_dim]. Both throw InvalidInput if
// OpenBLAS is not found (host_blas.h).
struct ExpandedKeys {
  std::vector<double> k, v;
};
ExpandedKeys reference_expand(const LatentInputs& inputs);

// The gradient of latent, like it, of those of what it expands to.
std::vector<double> reference_dlatent(const LatentInputs& inputs, const ReferenceBackward& gradients);

// Some rows, of keys or of queries, and the query heads [head_begin, head_end).
struct RowsAndHeads {
  std::vector<std::int64_t> rows;
  std::int64_t head_begin = 0, head_end = 0;
};
// What they add to the gradient of kv_up, like it: keys, by what all queries of the heads make of them;
// queries, by all of their keys. q [batch, q_heads, q_len, head_dim], and dout the same with v_head_dim.
std::vector<double> reference_dkv_up_of_keys(const LatentInputs& inputs, const ReferenceBackward& gradients,
                                             const RowsAndHeads& keys);
struct QueryInputs {
  const std::vector<double>&q, &dout;
};
std::vector<double> reference_dkv_up_of_queries(const LatentInputs& inputs,
                                                const ReferenceBackward& gradients,
                                                const QueryInputs& queries, const RowsAndHeads& rows);

}  // namespace cp::sim

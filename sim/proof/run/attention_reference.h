// Computes attention and its gradients on one device in float64. Runs of plans are compared with this. It
// shares no code with the kernels and the planner. Matrix products are OpenBLAS's, on one thread each, and
// the heads are shared among the cores.
//
// The matrix of scores exists only for a tile of rows at a time, and only from the first to the last key that
// one of these rows may see. Dropout's generator stands here a second time, from the paper's words.
#pragma once

#include <vector>

#include "shared/context_parallel/problem.h"

namespace cp::sim {

// The inputs, which must outlive the call. They are row-major: q [batch, q_heads, q_len, head_dim], k [batch,
// kv_heads, kv_len, head_dim], v the same with v_head_dim. Of the results and dout, dq is like q, dk like k,
// dv like v, and out and dout are like q with v_head_dim.
struct ReferenceInputs {
  const AttentionProblem& problem;
  const std::vector<double>&q, &k, &v;
  const std::vector<double>& sinks;  // [q_heads]; empty if the problem has none
  std::uint64_t seed = 0;            // of dropout
  // [batch, kv_len, rank + rope_dim]; k and v are what they expand to (latent_reference.h). Null if the
  // problem has no latent rows.
  const std::vector<double>* latent = nullptr;
  std::int64_t first_batch = 0;  // the number of the first batch entry, which dropout asks for
};

// The result of the forward pass. p are the weights, ds the gradients of the scores (before the scale: ds = p
// (dout v - delta)), i is a query and j a key. Sums such as row_p2 bound the errors of what is added up from
// their terms (attention_tolerance.h).
struct ReferenceForward {
  std::vector<double> out;
  std::vector<double> lse;     // [batch, q_heads, q_len]
  std::vector<double> row_p2;  // sum over j of p^2, [batch, q_heads, q_len]; p before dropout
};
// Throws InvalidInput if OpenBLAS is not found (host_blas.h), as reference_backward() does.
ReferenceForward reference_forward(const ReferenceInputs& inputs);

// The result of the backward pass. Sums over i go over the queries of all heads that share the kv head.
struct ReferenceBackward {
  std::vector<double> dq, dk, dv;
  std::vector<double> row_ds, row_ds2;  // sums over j of |ds| and ds^2, [batch, q_heads, q_len]
  std::vector<double> key_p, key_p2;    // sums over i of p and p^2, [batch, kv_heads, kv_len]
  std::vector<double> key_ds, key_ds2;  // sums over i of |ds| and ds^2
  // What each row adds to its head's dsinks, [batch, q_heads, q_len], and the weight of the sink in it; empty
  // without sinks.
  std::vector<double> row_dsink, row_sink;
  // With latent rows, of which c are the first `rank` elements: the sums over j of scale ds c and of p c,
  // [batch, q_heads, q_len, rank]. What a row of queries adds to the weight's gradient is q and dout times
  // these. Empty without latent rows.
  std::vector<double> row_ds_c, row_p_c;
  // With latent rows: what each query head adds to dk and dv, [batch, q_heads, kv_len, dim].
  std::vector<double> head_dk, head_dv;
};
ReferenceBackward reference_backward(const ReferenceInputs& inputs, const ReferenceForward& forward,
                                     const std::vector<double>& dout);

}  // namespace cp::sim

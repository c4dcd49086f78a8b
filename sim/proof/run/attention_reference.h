// Attention and its gradients on one device in float64: what runs of plans are compared with. It shares no
// code with the kernels and the planner; matrix products are OpenBLAS's, on one thread each, and heads go in
// parallel.
//
// The matrix of scores exists only a tile of rows at a time, and only between the first and the last key that
// one of these rows may see.
#pragma once

#include <vector>

#include "shared/context_parallel/problem.h"

namespace cp::sim {

// Row-major: q, dout, out, dq [batch, q_heads, q_len, dim]; k, v, dk, dv [batch, kv_heads, kv_len, dim].
struct ReferenceInputs {
  const AttentionProblem& problem;
  const std::vector<double>&q, &k, &v;
};

// With p the weights, ds the gradients of the scores (before the scale: ds = p (dout v - delta)), i a query
// and j a key. The sums bound the errors of what is added up from them (attention_tolerance.h).
struct ReferenceForward {
  std::vector<double> out;
  std::vector<double> lse;     // [batch, q_heads, q_len]
  std::vector<double> row_p2;  // sum over j of p^2, [batch, q_heads, q_len]
};
ReferenceForward reference_forward(const ReferenceInputs& inputs);

// Sums over i go over the queries of all heads of the group.
struct ReferenceBackward {
  std::vector<double> dq, dk, dv;
  std::vector<double> row_ds, row_ds2;  // sums over j of |ds| and ds^2, [batch, q_heads, q_len]
  std::vector<double> key_p, key_p2;    // sums over i of p and p^2, [batch, kv_heads, kv_len]
  std::vector<double> key_ds, key_ds2;  // sums over i of |ds| and ds^2
};
ReferenceBackward reference_backward(const ReferenceInputs& inputs, const ReferenceForward& forward,
                                     const std::vector<double>& dout);

}  // namespace cp::sim

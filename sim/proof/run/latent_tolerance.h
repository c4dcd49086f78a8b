// Says how far what latent rows add to attention may be off: keys and values that they are expanded to, which
// moves every result, and the gradients that keys' and values' are contracted to. The rules are those of
// attention_tolerance.h, with these squares of errors more, where c is a latent row without its rotated part,
// w a row of kv_up, W(h) the rows of one head's keys or values, and |.|1 the largest size of an element:
//   k      kappa^2 = (rank + 2)(u |w||c|)^2 + (v |k|1)^2   of each element: a product that adds up `rank` terms,
//          and is rounded; nu^2 is the same of v
//   e^2    + (scale |q| kappa)^2, and so w^2; a value moves out by nu^2 sum p^2, and delta by that of dout;
//          dp is off by (|dout| nu)^2, and dq by (scale kappa)^2 sum ds^2. Partial sums of values are taken
//          as 1, since v and the weights are made of the same rows
// A key's own error is the same for all its queries, and so does not average out over them:
//   dk     + (scale |q|1)^2 (2 (scale |q| kappa)^2 |ds|^2 + 2 (|dout| nu)^2 |p|^2 +
//            (scale |q| kappa)^2 |p|^2 max sum ds^2)      its weight and lse, dp and delta, delta by weights
//   dv     + |dout|^2 2 (scale |q| kappa)^2 |p|^2
// A gradient of a latent row is a sum over heads of such gradients, with the largest element of q W(h) and
// dout W(h) in place of those of q and dout. Heads are independent: their squares add up, and errors that are
// none of roundings as they are. Beside these
//   rounding of dk and dv before they are contracted: (v |column of W(h)| |dk|1)^2, once for each part, whose
//   squares add up to at most the square of the whole; the product: (L + 2)(u |column of W||dk dv|)^2 with L
//   = heads (nope + v_head_dim) terms; and (2R g^2 + (R + log2 heads) u^2) of the partial sums that travel
//   and are added up.
// A row of dkv_up is a sum over queries, with c in place of k in dq, and of errors of keys that are the same
// for all queries, over keys.
#pragma once

#include <vector>

#include "shared/context_parallel/problem.h"
#include "sim/proof/run/attention_test_data.h"
#include "sim/proof/run/tensor_tolerance.h"

namespace cp::sim {

// kappa^2 and nu^2, nu times what dropout multiplies values by.
struct ExpansionErrors {
  double k2 = 0, v2 = 0;
};
ExpansionErrors expansion_errors(const AttentionTestData& data);

// What the gradients of latent rows and of the weight are bounded by. Vectors are of rows of queries [batch,
// q_heads, q_len] or of keys [batch, kv_heads, kv_len]; squares are of errors relative to the largest factor
// that is not named, and what is linear has no root over it.
struct GradientErrors {
  std::vector<double> key_ds2, key_ds, key_p2, key_p;  // of dk: over scale |q|1; of dv: over |dout|1
  std::vector<double> row_ds2, row_ds, row_p2, row_p;  // of sums over keys of ds c and p c, over |c|1
  std::vector<double> shared_ds2, shared_p2;           // the part of key_ds2 and key_p2 that queries share
  std::vector<double> sum_ds, sum_p;                   // |ds| and |p| of keys: what partial sums are at most
  double ranks = 0;                                    // 0 for one
  double g = 0;                                        // the unit roundoff of travelling gradients
  double kept = 1;                                     // what dropout multiplies kept weights by
};

struct LatentTolerances {
  TensorTolerance dlatent;     // rows are [batch, kv_len]
  std::vector<double> dkv_up;  // by kv head
};
LatentTolerances latent_tolerances(const AttentionTestData& data, const GradientErrors& errors);

}  // namespace cp::sim

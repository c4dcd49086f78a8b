// How far results may be from those of one device in float64, from the dtypes and the lengths of the sums.
//
// With u = 2^-24 and v the unit roundoff of the problem's dtype, g of travelling gradients, m of merged outputs;
// sums of n rounded terms err by at most kGrowth sqrt(n) roundoffs (probabilistic bounds: Higham and Mary 2019).
// A score is a sum of head_dim terms: ds = kGrowth sqrt(d) u |q||k| scale. A weight p errs by
//   w = 2 ds + (kGrowth sqrt(kv_len) + |lse|) u    relative to itself.
//   out   |v| w + parts m |v| + v |v|
//   lse   w + (parts + 1) u |lse|
//   dS    p (dout v - delta): w relative, and E absolute times p, with
//         E = kGrowth (sqrt(dv) u |dout||v| + v |dout out|_2): delta comes from a stored, rounded out
//   dq    scale |k| (w sum|dS| + E) + parts g |dq| + v |dq|
//   dk    scale |q| (w sum|dS| + E sum p) + parts g |dk| + v |dk|
//   dv    |dout| w sum p + parts g |dv| + v |dv|
// Norms and sums are the largest that occur, from the reference itself.
#pragma once

#include "shared/context_parallel/attention_plan.h"
#include "sim/run/attention_run.h"

namespace cp::sim {

struct AttentionTolerances {
  double out = 0, lse = 0, dq = 0, dk = 0, dv = 0;
};
AttentionTolerances attention_tolerances(const AttentionTestData& data, const AttentionRequest& request,
                                         bool backward);

}  // namespace cp::sim

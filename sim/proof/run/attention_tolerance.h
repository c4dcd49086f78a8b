// Says how far results may be from those of one device in float64: a bound for each element, from the dtypes,
// the lengths of the sums, and the sizes of what is added up.
//
// Roundings are taken as independent errors of mean 0, each of at most one unit roundoff of what is rounded
// (Higham and Mary 2019, "A new approach to probabilistic rounding error analysis"). So their squares add up,
// and by Hoeffding's inequality a result is off by no more than kGrowth times the root of that sum; if every
// rounding is as bad as can be, this fails with a probability of 2 exp(-kGrowth^2 / 2) at most. Up to
// kGrowth^2 roundings the bound is more than their plain sum. The rows of v and dout must have random signs,
// as those of AttentionTestData have: then, by the same inequality, no partial sum of the terms t of out, dk
// and dv is larger than |t| = min(sum|t|, kGrowth sqrt(sum t^2)).
//
// In what follows
//   u = 2^-24; v the unit roundoff of the problem's dtype, g of travelling gradients, m of merged outputs
//   s = scale |q| |k|, which bounds the scores; n the keys of a query, N the queries of a key; R the ranks
//   L = s + log n, which bounds the lse of all parts
// and the squares of the errors are, where |.| without a query or key is the largest that occurs:
//   weight   e^2 = (cd + 5)(u s)^2 + (4u)^2    of each p, relative: its score, the exponential within 2 ulp
//   sums     a^2 = (cw + cv + 8) u^2 + 2 r^2   of weights, and of values
//                + R (2 m^2 + (6u)^2 + (2uL)^2)  and for each part that is merged, if R > 1
//   out      |v|^2 (4 e^2 sum p^2 + a^2 |p|^2) a weight moves out by p (v - out)
//   lse      e^2 sum p^2 + (cw + 8) u^2 + r^2 + (uL)^2, and R ((uL)^2 + (6u)^2) if R > 1
//   dp       (cdv + 4)(u |dout||v|)^2          of each dout v - delta, without delta's error
//   delta    (dv + 1)(u |dout||out|)^2 + (v |dout out|)^2 + (|dout||v||p| a)^2 + e^2 sum ds^2: made from a
//            rounded out
//   w^2    = (cd + 6)(u s)^2 + (u (s + L))^2 + (4u)^2    of each p in the backward pass, without
//            the lse's error
//   dq       (scale |k|)^2 (w^2 sum ds^2 + dp^2 sum p^2 + (lse^2 + (cq + 4) u^2 + 2R g^2) (sum|ds|)^2 +
//            delta^2)
//   dk       (scale |q|)^2 ((w^2 + lse^2) sum ds^2 + (dp^2 + delta^2) sum p^2 + ((ck + 4) u^2 + 2R
//            g^2)|ds|^2)
//   dv       |dout|^2 ((w^2 + lse^2) sum p^2 + ((ck + 4) u^2 + 2R g^2)|p|^2)
// with the terms of 2R only if R > 1.
// A merge on the host computes in double: it has u instead of 6u in a, and none of the 6u in lse.
// The c are lengths of sums. A GPU's kernels add term after term: cw = cv = n + n/128 (a rounding for each
// key and tile), cq = n, ck = N, cd = d and cdv = dv. Those of the host add up chains, and then the chains
// without loss (shared/kernels/tiled_attention.h): cw, cv, cq and ck are at most kWeightChain, kForwardChain,
// kQueryChain and kKeyChain, whatever n and N, and cd and cdv at most kScoreChain (twice that in bf16, of
// pairs) and d/32. A chain's partial sums are bounded by its own terms, so c u^2 times the sum of the squares
// of these bounds is what all chains add, and that sum is at most |t|^2: both sum|t| and the root of sum t^2,
// taken of each chain, have squares that add up to no more than the square of the whole.
//   r^2    = k ((5u)^2 + (u (8 + log n))^2)   of scaling sums down: what was added before is multiplied by
//            exp(old - new greatest score). On the host that happens where scores rise by more than 8, so
//            k = 0 for s < 4, where they cannot, and else k = min(s / 4, 2 + log(n) / 8): what was scaled
//            down more often than that has no weight left. The difference of the scores rounds by u times its
//            size, and all that it scales down weighs n exp(8 - size) at most. Else: in e and n/128.
// Where the target's fused attention is used, with f the dtype's unit roundoff:
//   - partial outputs and gradients are rounded to the dtype before they are added up (in f32, by each rank):
//     partial outputs have weights whose squares sum up to at most 1, so a^2 has f^2 more; partial gradients
//     are partial sums, so the factor of (sum|ds|)^2 in dq, of |ds|^2 in dk and of |p|^2 in dv has f^2 more
//     (squares of parts add up to at most the square of the whole), and each part may be off by half the
//     dtype's least step
//   - a rank has more parts, each of one key at least: n merges instead of R, but for m
//   - a library may round p, and ds, to the dtype before it multiplies: out has |v|^2 f^2 sum p^2 more, w^2
//     has f^2 more, and delta, by dout v = ds / p + delta, 2 f^2 (sum ds^2 + (|dout||out|)^2 sum p^2)
// With a softcap e^2 and w^2 have (8 u s)^2 more: tanh and its factors round, and change a score less than it
// was off; and the derivative, within 32 u of 1 - t^2 <= 1 and off by the score's own error as a weight is,
// adds (32 u)^2 + e^2 to w^2. With dropout a kept weight is 1 / (1 - probability) times itself: so are v and
// dout, by which weights are bounded. A sink is one more key with the score |sink|, whose value is 0, and one
// more merge: s and n know it.
//   dsinks   the sum over a head's rows of (c lse)^2 + (p delta)^2, where c is what the row adds to it and p
//            the sink's weight in the row; and without the root |c| (scale's error + 4u), and a rounding of
//            the sum of the |c|
// What is no rounding is added as it is: the error c = s |float(scale)/scale - 1| of all scores alike,
// weights below e^-86.9 that kernels take as 0, and the last rounding to the dtype, v |x|. The bound is of
// first order: products of errors are left out.
#pragma once

#include <vector>

#include "shared/context_parallel/attention_plan.h"
#include "sim/proof/run/attention_test_data.h"
#include "sim/proof/run/tensor_tolerance.h"

namespace cp::sim {

// Rows are [batch, heads, seq].
struct AttentionTolerances {
  TensorTolerance out, lse, dq, dk, dv;  // gradients: empty if not asked for
  // With latent rows (latent_tolerance.h): of what they expand to, of their gradient, and of each kv head's
  // rows of the weight's.
  TensorTolerance k, v, dlatent;
  std::vector<double> dkv_up;
  // Of what each row adds to dsinks, [batch, heads, seq]; empty without sinks. The squares of independent
  // errors add up over rows, and the others as they are.
  std::vector<double> row_dsink2, row_dsink;
};

// The tolerances of the request's results on the target.
AttentionTolerances attention_tolerances(const AttentionTestData& data, const AttentionRequest& request,
                                         bool backward, const Target& target = host_target());

}  // namespace cp::sim
